"""Whose turn it is: so many pushes at a time, few of one side, and of one adapter one."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from lorafleet.errors import StagingBusy
from lorafleet.push.failures import Overtaken

from lorafleet_operator.fair import FairPlaces, SideOf

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_PLACES: Final = 6
"""Pushes at a time: the bound on what is in memory of them."""
_PLACES_OF_SIDE: Final = 2
"""Of them those of one side: one that is slow or hostile leaves room for others."""
_MANIFESTS: Final = 2
"""Manifests at a time: one takes ten times its bytes while it is read."""
_CALLS_OF_SIDE: Final = 128
_ENDING_SECONDS: Final = 60.0


class Turns:
    """Has calls wait for one another. A side: those whom one may be held to be (a namespace's)."""

    def __init__(self) -> None:
        self._places = FairPlaces(_PLACES, _PLACES_OF_SIDE)
        self._manifests = FairPlaces(_MANIFESTS)
        self._calls: Counter[str] = Counter()
        self._lines: dict[str, _Line] = {}

    @asynccontextmanager
    async def call(self, side: str) -> AsyncIterator[None]:
        """Count a call of a side. Raises StagingBusy when it has too many."""
        if self._calls[side] >= _CALLS_OF_SIDE:
            raise StagingBusy(f"{side} has {_CALLS_OF_SIDE} calls going on, which is the most")
        self._calls[side] += 1
        try:
            yield
        finally:
            self._calls[side] -= 1
            if not self._calls[side]:
                del self._calls[side]

    def place(self, side: str) -> SideOf:
        """Return what to hold while a push goes on."""
        return self._places.of(side)

    def manifest(self, side: str) -> SideOf:
        """Return what to hold while a manifest comes and is read."""
        return self._manifests.of(side)

    @asynccontextmanager
    async def alone(self, key: str, what: str) -> AsyncIterator[None]:
        """Become the only push of the adapter: the one before is told to end, and has ended then.

        A trainer that comes again need not wait for a stream that is broken without anybody having
        noticed. `what` comes: the one before raises Overtaken with that.
        """
        line = self._lines.setdefault(key, _Line())
        mine, before = _Push(), line.latest
        line.latest = mine
        if before is not None:
            before.end(f"{what} took its place")
        try:
            async with line.held(key):
                yield
        except asyncio.CancelledError:
            if not mine.overtaken:
                raise
            mine.task.uncancel()
            raise Overtaken(f"{key}: {mine.overtaken}") from None
        finally:
            mine.over = True
            latest = line.latest
            if latest is not None and latest.over and not line.lock.locked():
                self._lines.pop(key, None)


class _Line:
    """The pushes of one adapter, of which one goes on."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.latest: _Push | None = None

    @asynccontextmanager
    async def held(self, key: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(_ENDING_SECONDS):
                await self.lock.acquire()
        except TimeoutError:
            raise StagingBusy(f"an earlier push of {key} does not end") from None
        try:
            yield
        finally:
            self.lock.release()


class _Push:
    """One push: the task that it runs in."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.task: asyncio.Task[Any] = task
        self.overtaken = ""
        self.over = False

    def end(self, why: str) -> None:
        if not self.over and not self.overtaken:
            self.overtaken = why
            self.task.cancel()
