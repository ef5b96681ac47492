"""Until when this process may act for a pool, and the one check before each write and each order.

A term is one uninterrupted hold of a shard. A pass runs within the term of its pool; whoever writes
to the API server or orders something of a sidecar asks `check()` first, so no new kind of order can
forget it. Time is this machine's own, counted through suspension: a process that was stopped for
longer than its term finds it over when it wakes, before it has learned anything from others.
What is done outside of every pass (reading, leases) has no term and is not held up.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lorafleet.errors import LorafleetError

if TYPE_CHECKING:
    from collections.abc import Iterator

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_CURRENT: Final[ContextVar[Term | None]] = ContextVar("term", default=None)


class TermOver(LorafleetError):
    """Raised instead of acting for a pool that another operator may act for by now."""


def now() -> float:
    """Return seconds of a clock that only ever goes on, also while the machine sleeps."""
    return time.clock_gettime(_CLOCK)


@dataclass(eq=False)
class Term:
    """One hold: valid until `until` on the clock of `now`, which each renewal moves on."""

    until: float = float("inf")

    def left(self) -> float:
        """Return the seconds until it is over, 0 or less when it is."""
        return self.until - now()

    def end(self) -> None:
        """End it now."""
        self.until = float("-inf")

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Make what is done in the block, and in tasks that it starts, be done within this term."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)


def current() -> Term | None:
    """Return the term that this is done within, None outside of every pass."""
    return _CURRENT.get()


def check() -> float:
    """Return the seconds that the pass may still act; infinite outside of every pass.

    Raises TermOver.
    """
    term = _CURRENT.get()
    left = term.left() if term is not None else float("inf")
    if left <= 0:
        raise TermOver("the lease of the pool's shard is not held any more")
    return left
