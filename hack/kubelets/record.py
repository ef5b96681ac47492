"""Which processes are ours: `down` ends only those, in another run than `up`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Started:
    """One process; its start tells it from a later one with the same id."""

    name: str
    pid: int
    start: int

    @classmethod
    def of(cls, name: str, pid: int) -> Started:
        """The process that has `pid` now."""
        return cls(name, pid, _start_of(pid))

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self.start == _start_of(self.pid)

    def kill(self) -> None:
        """End it at once: nothing of the cluster is kept. Returns when it is gone."""
        while self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.02)


def _start_of(pid: int) -> int:
    """Clock ticks from boot to the start of `pid`; 0 if there is none, or only a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] == "Z" else int(fields[19])


def write(file: Path, started: list[Started]) -> None:
    """Note the processes, the oldest first."""
    file.write_text(json.dumps([[one.name, one.pid, one.start] for one in started], indent=1))


def read(file: Path) -> list[Started]:
    """The noted processes; none if there is no note."""
    return [Started(*row) for row in json.loads(file.read_text())] if file.exists() else []
