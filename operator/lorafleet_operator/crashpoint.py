"""Fault injection: end this process by SIGKILL once a named step is reached.

`LORAFLEET_CRASH_AT=<step>` arms it; tests run through `STEPS`. Nothing is flushed and no
`finally` runs: exactly what a kernel's OOM killer does.
"""

from __future__ import annotations

import os
import signal
from typing import Final

STEPS: Final = (
    "resolved",  # the source was read, no engine touched
    "chunk.sent",  # in the middle of a transfer
    "staged",
    "loaded",  # beside what is served, the name not moved
    "decided",  # that all engines serve a revision (spec.rollout.atomic), no name moved
    "published",
    "reported",  # the status was written
    "unloaded",  # a deleted adapter is gone from the engines, the finalizer still there
    "push.piece",  # a piece of a tensor came from a trainer
    "push.brought",  # all tensors of a push have their file, the revision has not
    "push.described",  # the revision's own files are written, it has no name yet
    "push.kept",  # the revision is in the spool, no spec names it
    "push.named",  # the spec names it, the trainer has no answer
)
_armed: set[str] = set()


def arm(step: str) -> None:
    """Make the process die at `step`; "" arms nothing."""
    if step:
        _armed.add(step)


def crash_at(step: str) -> None:
    """Die here if this step is armed."""
    if step in _armed:
        os.kill(os.getpid(), signal.SIGKILL)
