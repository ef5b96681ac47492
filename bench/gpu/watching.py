"""What goes on while something is waited for: values that another process prints, and CPU time.

`with Watch(command, pids) as watch:` runs `command`, which prints lines of JSON, each a list of
`time.monotonic()` and the values that it has found then; `watch.note(what)` notes a moment exactly.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_TICKS = os.sysconf("SC_CLK_TCK")
_START_SECONDS = 30.0

Sample = tuple[float, dict[str, Any]]
"""Seconds since the begin, and what was found then."""


class Watch:
    """Samples of what `command` finds; `pids`: process ids by the name of what they run."""

    def __init__(self, command: Sequence[str], pids: Mapping[str, int]) -> None:
        self.samples: list[Sample] = []
        """There when it has ended."""
        self.moments: dict[str, dict[str, float]] = {}
        """By name: `seconds` since the begin, and the CPU seconds of each process since then."""
        self._command = command
        self._pids = pids

    def __enter__(self) -> Self:
        self._printed = tempfile.TemporaryFile("w+")  # closed in __exit__
        self._process = subprocess.Popen(self._command, stdout=self._printed)
        deadline = time.monotonic() + _START_SECONDS
        # The first line is what there was before anything happened.
        while not os.fstat(self._printed.fileno()).st_size and time.monotonic() < deadline:
            time.sleep(0.01)
        self._before = cpu_seconds(self._pids)
        self._began = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        with self._printed as printed:
            printed.seek(0)
            whole = [json.loads(line) for line in printed if line.endswith("\n")]
        self.samples = [(round(at - self._began, 3), found) for at, found in whole]

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
        return time.monotonic() - self._began

    def _cpu(self) -> dict[str, float]:
        now = cpu_seconds(self._pids)
        return {name: round(now[name] - before, 2) for name, before in self._before.items()}


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
            if before == value:
                continue
            found.setdefault(name, [at, at, before, value])[1::2] = [at, value]
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
