"""What one input may cost: a second of CPU, and memory, measured in two ways.

Address space: RLIMIT_AS of the worker, `HEADROOM` above what it had before the first input, for
every input. Python's own allocations: tracemalloc, which is slow, for every `TRACED_EVERY`th.
"""

from __future__ import annotations

import resource
import signal
import time
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING

from lorafleet.errors import LorafleetError

if TYPE_CHECKING:
    from fuzzing.targets import Target

SECONDS = 1.0
"""CPU of one input, all threads."""
KILL_SECONDS = 5.0
"""CPU of one input at which the worker is ended by SIGPROF, also inside of C code."""
HEADROOM = 512 << 20
PEAK = 128 << 20
"""Bytes that Python may allocate at once for one input; inputs have at most about 1 MiB."""
TRACED_EVERY = 64


class BeyondLimits(Exception):
    """One input took more than a second, or more memory than its limit."""


def confine() -> None:
    """Set RLIMIT_AS for this process; to be called when everything is loaded."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + HEADROOM
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def measured(target: Target, data: bytes, *, traced: bool) -> bool:
    """Run one input. Raises BeyondLimits, and what the reader raised."""
    if traced:
        tracemalloc.start()
    signal.setitimer(signal.ITIMER_PROF, KILL_SECONDS * (4 if traced else 1))
    started = time.process_time()
    try:
        accepted = target.run(data)
    except LorafleetError:
        accepted = False
    finally:
        seconds = time.process_time() - started
        signal.setitimer(signal.ITIMER_PROF, 0)
        peak = tracemalloc.get_traced_memory()[1] if traced else 0
        tracemalloc.stop()
    if not traced and seconds > SECONDS:
        raise BeyondLimits(f"took {seconds:.2f} s of CPU, at most {SECONDS:g} are allowed")
    if peak > PEAK:
        raise BeyondLimits(f"allocated {peak >> 20} MiB, at most {PEAK >> 20} are allowed")
    return accepted
