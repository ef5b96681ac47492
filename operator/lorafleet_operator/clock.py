"""What time it is for what is decided by it: the end of a trial, of a drain, of a deletion's patience.

The wall clock of a machine jumps: when somebody sets it, when it is first synchronised. What stands at
the API server has to be compared with a time of day all the same, for it outlives this process. So the
wall clock is read once, and what passed since is counted by a clock that only ever goes on. What is said
for people (times of conditions and Events) has the wall clock's time.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from lorafleet_operator import term

if TYPE_CHECKING:
    from collections.abc import Callable


class SteadyClock:
    """The time of day as of its start, and what passed since."""

    def __init__(
        self,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        seconds: Callable[[], float] = term.now,
    ) -> None:
        self._seconds = seconds
        self._start = wall() - timedelta(seconds=seconds())

    def now(self) -> datetime:
        """Return the time, an aware one."""
        return self._start + timedelta(seconds=self._seconds())


_CLOCK: Final = SteadyClock()


def now() -> datetime:
    """Return the time of this process' clock."""
    return _CLOCK.now()
