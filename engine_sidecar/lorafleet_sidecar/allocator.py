"""Which ranges of the arena are taken: first fit on 2 MiB borders, pure arithmetic."""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

ALIGNMENT = 2 << 20
"""Extents start and end on borders of huge pages: one can be punched out or moved alone."""


def aligned(size: int) -> int:
    """Return `size` bytes rounded up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, order=True)
class Extent:
    """Bytes [offset, offset + size) of the arena."""

    offset: int
    size: int

    @property
    def end(self) -> int:
        """Return the first byte behind the extent."""
        return self.offset + self.size


class Allocator:
    """The taken extents of an arena of `limit` bytes, in order of their offsets."""

    def __init__(self, limit: int, taken: Iterable[Extent] = ()) -> None:
        """Raises ValueError for what `take` refuses."""
        self.limit = limit - limit % ALIGNMENT
        self._taken: list[Extent] = []
        for extent in taken:
            self.take(extent)

    def holes(self) -> Iterator[Extent]:
        """Yield the free ranges from low to high."""
        at = 0
        for extent in self._taken:
            if extent.offset > at:
                yield Extent(at, extent.offset - at)
            at = extent.end
        if at < self.limit:
            yield Extent(at, self.limit - at)

    def largest_free(self) -> int:
        """Return the bytes of the largest hole."""
        return max((hole.size for hole in self.holes()), default=0)

    def taken_bytes(self) -> int:
        """Return the bytes of all taken extents."""
        return sum(extent.size for extent in self._taken)

    def allocate(self, size: int) -> Extent | None:
        """Take the first hole that holds `size` bytes (rounded up); None if there is none."""
        wanted = aligned(max(size, 1))
        for hole in self.holes():
            if hole.size >= wanted:
                extent = Extent(hole.offset, wanted)
                self.take(extent)
                return extent
        return None

    def take(self, extent: Extent) -> None:
        """Mark exactly `extent` as taken. Raises ValueError if it overlaps or sticks out."""
        if extent.size <= 0 or extent.offset % ALIGNMENT or extent.size % ALIGNMENT:
            raise ValueError(f"{extent} is not aligned to {ALIGNMENT}")
        if extent.offset < 0 or extent.end > self.limit:
            raise ValueError(f"{extent} is outside the arena of {self.limit} bytes")
        place = bisect.bisect_left(self._taken, extent)
        before = self._taken[place - 1] if place else None
        after = self._taken[place] if place < len(self._taken) else None
        if (before and before.end > extent.offset) or (after and after.offset < extent.end):
            raise ValueError(f"{extent} overlaps {before} or {after}")
        self._taken.insert(place, extent)

    def free(self, extent: Extent) -> None:
        """Give back exactly `extent`. Raises ValueError if it is not taken."""
        place = bisect.bisect_left(self._taken, extent)
        if place == len(self._taken) or self._taken[place] != extent:
            raise ValueError(f"{extent} is not taken")
        del self._taken[place]


def choose_victims(
    limit: int, kept: Iterable[Extent], evictable: Iterable[Extent], size: int
) -> list[Extent] | None:
    """Return which of `evictable` (least recently used first) to free so that `size` bytes fit.

    Only those that border on the hole which opens first are returned; [] if a hole is there
    already, None if freeing all of them would not help.
    """
    order = list(evictable)
    room = Allocator(limit, [*kept, *order])
    wanted = aligned(max(size, 1))
    for freed in range(len(order) + 1):
        if freed:
            room.free(order[freed - 1])
        for hole in room.holes():
            if hole.size >= wanted:
                return [
                    victim
                    for victim in order[:freed]
                    if victim.offset < hole.offset + wanted and victim.end > hole.offset
                ]
    return None


def find_room(
    limit: int, taken: Collection[Extent], evictable: Collection[Extent], size: int
) -> tuple[Extent, list[Extent]] | None:
    """Return where `size` bytes fit among what is taken, and which of `evictable` to free for that.

    None if freeing all of them would not help.
    """
    kept = [extent for extent in taken if extent not in evictable]
    victims = choose_victims(limit, kept, evictable, size)
    if victims is None:
        return None
    trial = Allocator(limit, (extent for extent in taken if extent not in victims))
    chosen = trial.allocate(size)
    assert chosen is not None  # choose_victims found the hole
    return chosen, victims
