"""One process of the fuzzer: makes the inputs of its share, runs them, and reports."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import sys
import time
import traceback
import warnings
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Protocol

from fuzzing.limits import TRACED_EVERY, confine, measured
from fuzzing.targets import SCHEDULE, TARGETS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

    from fuzzing.targets import Target


class Number(Protocol):
    """An integer that two processes see."""

    value: int


@dataclass(frozen=True)
class Share:
    """Which inputs a worker runs: numbers first, first + step, .. below `count`."""

    seed: int
    target: str
    first: int
    step: int
    count: int
    until: float
    """time.monotonic() at which it ends in any case."""


@dataclass
class Finding:
    """An input that broke a rule."""

    target: str
    number: int
    data: bytes
    trace: str

    @property
    def kind(self) -> str:
        """What is one bug: the exception and where it was raised."""
        lines = self.trace.strip().splitlines()
        places = [line.strip() for line in lines if line.strip().startswith("File ")]
        return f"{self.target} {lines[-1].split(':')[0]} {places[-1] if places else ''}"

    @property
    def file_name(self) -> str:
        """The name under which the corpus keeps it."""
        return f"{self.target}-{hashlib.sha256(self.data).hexdigest()[:16]}"


@dataclass
class Progress:
    """What a worker did since its last report."""

    runs: dict[str, int] = field(default_factory=dict)
    accepted: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    ended: bool = False


def target_of(share: Share, number: int) -> str:
    """Return whose input the number is."""
    # A prime stride mixes the schedule, so that both workers meet every target.
    return SCHEDULE[number * 37 % len(SCHEDULE)] if share.target == "all" else share.target


def make(target: Target, name: str, seed: int, number: int) -> bytes:
    """Return input `number`: the same for the same seed, whatever ran before."""
    return target.make(Random(f"{seed}:{name}:{number}"))


@contextlib.contextmanager
def opened(names: list[str]) -> Iterator[dict[str, Target]]:
    """Give the named targets; their volumes and threads are gone afterwards."""
    targets = {name: TARGETS[name]() for name in names}
    try:
        yield targets
    finally:
        for target in targets.values():
            target.close()


def work(share: Share, reports: Connection, current: Number) -> None:
    """Run a share; a report about each second, and at once when something was found.

    `current` holds the number of the input that runs: known also when it ends this process.
    """
    logging.disable()
    warnings.simplefilter("ignore")  # pickletools warns of escapes in what it decodes
    names = list(TARGETS) if share.target == "all" else [share.target]
    with opened(names) as targets:
        for name, target in targets.items():  # loads what is loaded late, and starts threads
            assert target.run(target.make(Random(1), valid=True)), name
        confine()
        progress, reported = Progress(), 0.0
        for number in range(share.first, share.count, share.step):
            now = time.monotonic()
            if now > share.until:
                break
            if now - reported > 1 or progress.findings:
                reports.send(progress)
                progress, reported = Progress(), now
            current.value = number
            name = target_of(share, number)
            data = make(targets[name], name, share.seed, number)
            progress.runs[name] = progress.runs.get(name, 0) + 1
            finding = run_one(targets[name], name, number, data, progress)
            if finding is not None:
                progress.findings.append(finding)
        progress.ended = True
        reports.send(progress)


def run_one(
    target: Target, name: str, number: int, data: bytes, progress: Progress
) -> Finding | None:
    """Run one input; return what it broke."""
    try:
        accepted = measured(target, data, traced=number // len(SCHEDULE) % TRACED_EVERY == 0)
    except Exception as error:  # each is a finding, its trace is kept
        limit = sys.getrecursionlimit() // 50
        trace = "".join(traceback.format_exception(error, limit=-limit))
        return Finding(name, number, data, trace)
    progress.accepted[name] = progress.accepted.get(name, 0) + accepted
    return None
