"""A file in memory, as the readers of sources want it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Blob:
    """A file in memory; whoever reads outside of it has a fault."""

    content: bytes
    name: str = "adapter_model.bin"
    identity: str = "1"
    revision: str = "1"
    linked: bool = False

    @property
    def size(self) -> int:
        """Return the size, bytes."""
        return len(self.content)

    async def read(self, offset: int, length: int) -> bytes:
        """Return a range, which must lie inside of the file."""
        assert 0 <= offset <= offset + length <= self.size, (offset, length, self.size)
        return self.content[offset : offset + length]
