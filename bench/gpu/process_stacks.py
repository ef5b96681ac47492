"""Stacks of running processes, by the py-spy that LORAFLEET_BENCH_PROFILER names; none without one."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_OPTIONS = ("--format", "raw", "--rate", "50", "--nonblocking", "--threads")


@contextmanager
def profiled(pids: Mapping[str, int], folder: Path) -> Iterator[None]:
    """Write `<folder>/profile-<name>.txt` for each process: its stacks and how often they were seen."""
    program = os.environ.get("LORAFLEET_BENCH_PROFILER", "")
    running = [_start(program, name, pid, folder) for name, pid in pids.items() if program]
    try:
        yield
    finally:
        for each in running:
            each.send_signal(signal.SIGINT)
        for each in running:
            with suppress(subprocess.TimeoutExpired):
                each.wait(15)
            each.kill()
            each.wait()


def _start(program: str, name: str, pid: int, folder: Path) -> subprocess.Popen[bytes]:
    output = folder / f"profile-{name}.txt"
    command = [program, "record", "--pid", str(pid), "--output", str(output), *_OPTIONS]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
