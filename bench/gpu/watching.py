"""What goes on while something is waited for: values that are asked for a few times a second, and CPU time.

`with Watch(look, pids) as watch:` calls `look` in a thread; `watch.note(what)` notes a moment exactly.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

PERIOD = 0.2
_TICKS = os.sysconf("SC_CLK_TCK")

Sample = tuple[float, dict[str, Any]]
"""Seconds since the begin, and what was found then."""


class Watch:
    """Samples of `look` every PERIOD seconds; `pids`: process ids by the name of what they run."""

    def __init__(self, look: Callable[[], dict[str, Any]], pids: Mapping[str, int]) -> None:
        self.samples: list[Sample] = []
        self.moments: dict[str, dict[str, float]] = {}
        """By name: `seconds` since the begin, and the CPU seconds of each process since then."""
        self._look = look
        self._pids = pids
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Self:
        self._before = cpu_seconds(self._pids)
        self._began = time.perf_counter()
        self._sample()  # what there was before anything happened
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def note(self, what: str) -> None:
        """Keep when `what` happened: now."""
        self.moments[what] = {"seconds": self.seconds, **self._cpu()}

    def progress(self, sent: int, of: int) -> None:
        """Note when the first and when the last of `of` bytes were asked for."""
        if sent == 0:
            self.note("accepted")
        if sent == of:
            self.note("sent")

    @property
    def seconds(self) -> float:
        """Since the begin."""
        return time.perf_counter() - self._began

    def _cpu(self) -> dict[str, float]:
        now = cpu_seconds(self._pids)
        return {name: round(now[name] - before, 2) for name, before in self._before.items()}

    def _work(self) -> None:
        while not self._end.wait(PERIOD):
            self._sample()

    def _sample(self) -> None:
        at = self.seconds
        try:
            found = self._look()
        except Exception as error:  # somebody is restarting or busy: the next look may succeed
            found = {"error": f"{type(error).__name__}: {error}"[:200]}
        cpu = {f"cpu {name}": value for name, value in self._cpu().items()}
        self.samples.append((round(at, 3), {**found, **cpu}))


def spans(samples: Sequence[Sample]) -> dict[str, list[Any]]:
    """Return for each value that changed: when that was first seen, and last, and from what to what.

    None is what a value was that was not there at the begin.
    """
    found: dict[str, list[Any]] = {}
    now = dict(samples[0][1]) if samples else {}
    for at, values in samples:
        for name, value in values.items():
            before = now.get(name)
            now[name] = value
            if before == value or name.startswith("cpu "):
                continue
            found.setdefault(name, [at, at, before, value])[1::2] = [at, value]
    return found


def chosen(text: str, names: Iterable[str]) -> dict[str, float]:
    """Return the samples of the metrics `names` in Prometheus's text, by name and labels."""
    found = {}
    for line in text.splitlines():
        sample, _, value = line.rpartition(" ")
        if sample.partition("{")[0] in names:
            found[sample] = float(value)
    return found


def cpu_seconds(roots: Mapping[str, int]) -> dict[str, float]:
    """Return the CPU seconds of each of these processes and of what it started that still runs.

    What is below one of the others counts there alone.
    """
    return attributed(roots, {pid: found for pid in _pids() if (found := _stat(pid)) is not None})


def attributed(
    roots: Mapping[str, int], processes: Mapping[int, tuple[int, int]]
) -> dict[str, float]:
    """Return the seconds by root; `processes`: parent and clock ticks, by process id."""
    names = {pid: name for name, pid in roots.items()}
    found = dict.fromkeys(roots, 0.0)
    for pid, (_, ticks) in processes.items():
        above = pid
        while above in processes and above not in names:
            above = processes[above][0]
        if above in names:
            found[names[above]] += ticks / _TICKS
    return found


def _pids() -> list[int]:
    return [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]


def _stat(pid: int) -> tuple[int, int] | None:
    """Return the parent and the clock ticks of a process, None if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return int(fields[1]), int(fields[11]) + int(fields[12])
