"""What the plan has put on one engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .demands import AdapterDemand


@dataclass(slots=True)
class Load:
    """Counts and bytes of adapters: of all on an engine, or of one tenant's there."""

    adapters: int = 0
    pinned: int = 0
    reserved: int = 0
    size_bytes: int = 0
    pinned_bytes: int = 0

    def add(self, adapter: AdapterDemand, times: int = 1) -> None:
        """Count one more adapter; one less with `times` -1."""
        size = adapter.size_bytes or 0
        self.adapters += times
        self.size_bytes += times * size
        if adapter.reserved:
            self.reserved += times
            if adapter.pinned:
                self.pinned += times
                self.pinned_bytes += times * size

    def copy(self) -> Load:
        """Return a load of its own with the same counts."""
        return Load(self.adapters, self.pinned, self.reserved, self.size_bytes, self.pinned_bytes)
