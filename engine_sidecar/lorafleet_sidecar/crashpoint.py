"""Fault injection: end this process by SIGKILL once a named step is reached.

Tests set `LORAFLEET_CRASH_AT=<name>` (first time) or `<name>:<n>` (n-th time, from 1). Without
the variable a call costs one dictionary look-up. No `atexit`, no `finally` runs: exactly what a
kernel's OOM killer does.
"""

from __future__ import annotations

import os
import signal

VARIABLE = "LORAFLEET_CRASH_AT"
_reached: dict[str, int] = {}


def crash_at(name: str) -> None:
    """Kill the process if `LORAFLEET_CRASH_AT` names this step and its turn has come."""
    wanted = os.environ.get(VARIABLE)
    if wanted is None:
        return
    step, _, turn = wanted.partition(":")
    if step != name:
        return
    _reached[name] = _reached.get(name, 0) + 1
    if _reached[name] >= int(turn or 1):
        os.kill(os.getpid(), signal.SIGKILL)
