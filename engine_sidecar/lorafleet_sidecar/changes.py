"""A counter that many watchers can wait on without missing a change."""

from __future__ import annotations

import asyncio


class Changes:
    """Counts changes; belongs to the event loop's thread."""

    def __init__(self) -> None:
        self.sequence = 0
        self._waiters: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        """Count one change and wake every waiter."""
        self.sequence += 1
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, seen: int) -> int:
        """Return the sequence as soon as it is not `seen` any more."""
        while self.sequence == seen:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)
        return self.sequence
