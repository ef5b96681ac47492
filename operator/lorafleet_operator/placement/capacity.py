"""Whether an engine has room for one more adapter beside what the plan has put there."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from .filters import mebibytes

if TYPE_CHECKING:
    from .demands import AdapterDemand
    from .engines import EngineSnapshot


class Shortage(StrEnum):
    """What an engine has too little of."""

    COUNT = "adapters"
    SLOTS = "slots"
    PLACES = "places"
    BYTES = "bytes"
    PIECE = "piece"


@dataclass(slots=True)
class Load:
    """What the plan has put on one engine so far."""

    adapters: int = 0
    pinned: int = 0
    reserved: int = 0
    size_bytes: int = 0

    def add(self, adapter: AdapterDemand, times: int = 1) -> None:
        """Count one more adapter; one less with `times` -1."""
        self.adapters += times
        self.pinned += times * adapter.pinned
        self.reserved += times * adapter.reserved
        self.size_bytes += times * (adapter.size_bytes or 0)

    def copy(self) -> Load:
        """Return a load of its own with the same counts."""
        return Load(self.adapters, self.pinned, self.reserved, self.size_bytes)


def shortage(
    adapter: AdapterDemand, engine: EngineSnapshot, load: Load, *, held: bool
) -> Shortage | None:
    """Return what `engine`, with `load` on it already, lacks for one more adapter.

    Slots and places in host memory are no limit for adapters that share them: the engine's LRU
    lets more take turns. One of each stays free of those that do not share, or no other adapter
    could ever be activated. `held`: the engine has the adapter already, or is receiving it, so
    that its piece of the arena is taken.
    """
    size = adapter.size_bytes or 0
    if size > engine.capacity_bytes - load.size_bytes:
        return Shortage.BYTES
    if engine.max_adapters is not None and load.adapters >= engine.max_adapters:
        return Shortage.COUNT
    if adapter.reserved:
        if adapter.pinned and load.pinned >= engine.max_loras - 1:
            return Shortage.SLOTS
        if engine.max_cpu_loras and load.reserved >= engine.max_cpu_loras - 1:
            return Shortage.PLACES
    if not held and size > engine.largest_piece_bytes:
        return Shortage.PIECE
    return None


def shortage_text(
    lacking: Shortage, adapter: AdapterDemand, engine: EngineSnapshot, load: Load
) -> str:
    """Return the line that says what was needed and what there is."""
    size = mebibytes(adapter.size_bytes or 0)
    match lacking:
        case Shortage.COUNT:
            return f"has {load.adapters} of {engine.max_adapters} adapters"
        case Shortage.SLOTS:
            return (
                f"has {load.pinned} pinned adapters for {engine.max_loras} GPU slots,"
                " one stays free"
            )
        case Shortage.PLACES:
            return (
                f"has {load.reserved} adapters that keep their place for {engine.max_cpu_loras}"
                " (max_cpu_loras), one stays free"
            )
        case Shortage.BYTES:
            free = mebibytes(max(engine.capacity_bytes - load.size_bytes, 0))
            return f"needs {size}, {free} of {mebibytes(engine.capacity_bytes)} are free"
        case Shortage.PIECE:
            largest = mebibytes(engine.arena_largest_free_bytes)
            return f"needs {size} in one piece, the largest free one has {largest}"
