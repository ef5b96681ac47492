"""A few places for many that wait: they go round between the sides, however many one of them sends.

With a plain semaphore a tenant with a thousand loads would let all others wait for a thousand.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from types import TracebackType

_Side = tuple[str, str]
"""Owner and kind."""


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

    def pass_on(self) -> Turn:
        """Return what stands for the place from now on: this one does no more."""
        taken, self._taken = self._taken, False
        return Turn(self._places, taken=taken)

    def give_back(self) -> None:
        """Leave the place to others."""
        if self._taken:
            self._taken = False
            self._places.release()


class FairPlaces:
    """`places` places. Those that wait get one in turn of their sides, of a side the first first.

    An owner of one or more sides holds at most `each` of them: whatever is slow of one, by accident
    or on purpose, leaves room for others.
    """

    def __init__(self, places: int, each: int | None = None) -> None:
        self._free = places
        self._each = places if each is None else max(1, each)
        self._held: Counter[str] = Counter()  # by owner
        self._waiting: OrderedDict[_Side, deque[asyncio.Future[None]]] = OrderedDict()

    def of(self, owner: str, kind: str = "") -> SideOf:
        """Return what a side waits for: those of one kind of one owner."""
        return SideOf(self, owner, kind)

    def awaited(self, owner: str) -> bool:
        """Return whether anybody waits who would have a place that the owner gives back now."""
        return any(self._held[side[0]] - (side[0] == owner) < self._each for side in self._waiting)

    async def take(self, owner: str, kind: str = "") -> None:
        """Wait for a place."""
        turn, side = asyncio.get_running_loop().create_future(), (owner, kind)
        self._waiting.setdefault(side, deque()).append(turn)
        self._hand_out()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(owner)  # it was handed out just now
            else:
                self._forget(side, turn)
            raise

    def give_back(self, owner: str) -> None:
        """Leave a place to whose turn it is."""
        self._free += 1
        self._held[owner] -= 1
        if not self._held[owner]:
            del self._held[owner]
        self._hand_out()

    def _hand_out(self) -> None:
        while self._free and (side := self._next()) is not None:
            turns = self._waiting.pop(side)
            turn = turns.popleft()
            if turns:
                self._waiting[side] = turns  # behind the other sides
            if not turn.done():
                self._free -= 1
                self._held[side[0]] += 1
                turn.set_result(None)

    def _next(self) -> _Side | None:
        """Return whose turn it is: of the sides whose owner may have one more, the first."""
        return next((side for side in self._waiting if self._held[side[0]] < self._each), None)

    def _forget(self, side: _Side, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(side)
        if turns is not None and turn in turns:
            turns.remove(turn)
            if not turns:
                del self._waiting[side]


class SideOf:
    """The places as one side sees them: a semaphore."""

    def __init__(self, places: FairPlaces, owner: str, kind: str) -> None:
        self._places = places
        self._owner = owner
        self._kind = kind

    async def acquire(self) -> bool:
        """Wait for a place."""
        await self._places.take(self._owner, self._kind)
        return True

    def release(self) -> None:
        """Leave it."""
        self._places.give_back(self._owner)

    def awaited(self) -> bool:
        """Return whether anybody would have the place if it were left."""
        return self._places.awaited(self._owner)

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
