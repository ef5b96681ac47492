"""A few places for many that wait: they go round between the sides, however many one of them sends.

With a plain semaphore a tenant with a thousand loads would let all others wait for a thousand.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from types import TracebackType


class Places(Protocol):
    """A bound on how many do one thing at a time: what a semaphore has."""

    async def acquire(self) -> bool:
        """Wait for a place."""

    def release(self) -> None:
        """Leave it."""


class Turn:
    """One of the places, given back at most once; taken at most once, unless it is `taken` already."""

    def __init__(self, places: Places, *, taken: bool = False) -> None:
        self._places = places
        self._taken = taken

    async def take(self) -> None:
        """Wait for a place, unless this is one."""
        if not self._taken:
            self._taken = await self._places.acquire()

    def give_back(self) -> None:
        """Leave the place to others."""
        if self._taken:
            self._taken = False
            self._places.release()


class FairPlaces:
    """`places` places. Those that wait get one in turn of their sides, of a side the first first."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    def of(self, side: str) -> SideOf:
        """Return what a side waits for."""
        return SideOf(self, side)

    async def take(self, side: str) -> None:
        """Wait for a place."""
        if self._free and not self._waiting:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(side, deque()).append(turn)
        self._hand_out()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back()  # it was handed out just now
            else:
                self._forget(side, turn)
            raise

    def give_back(self) -> None:
        """Leave a place to whose turn it is."""
        self._free += 1
        self._hand_out()

    def _hand_out(self) -> None:
        while self._free and self._waiting:
            side, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[side] = turns  # behind the other sides
            if not turn.done():
                self._free -= 1
                turn.set_result(None)

    def _forget(self, side: str, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(side)
        if turns is not None and turn in turns:
            turns.remove(turn)
            if not turns:
                del self._waiting[side]


class SideOf:
    """The places as one side sees them: a semaphore."""

    def __init__(self, places: FairPlaces, side: str) -> None:
        self._places = places
        self._side = side

    async def acquire(self) -> bool:
        """Wait for a place."""
        await self._places.take(self._side)
        return True

    def release(self) -> None:
        """Leave it."""
        self._places.give_back()

    async def __aenter__(self) -> Self:
        await self.acquire()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
