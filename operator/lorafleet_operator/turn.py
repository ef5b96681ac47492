"""A place among few, given back at most once: what bounds how many do one thing at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lorafleet_operator.fair import Places


class Turn:
    """One of the places of a semaphore; taken at most once, unless it is `taken` already."""

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
