"""A file whose digest is known beforehand: what is read of it is compared with that.

The digest is the file's identity. The content can be checked only where all of it is read, in
whatever order; a file of which a part is never read stays unchecked.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING

from lorafleet.errors import DigestMismatch

if TYPE_CHECKING:
    from lorafleet_operator.sources.base import Blob, Buffer

_MAX_AHEAD_BYTES = 128 << 20
"""Bytes kept because those before them have not come yet; above it the check is given up."""


class DigestedBlob:
    """A blob that raises `DigestMismatch` from the read that completes a wrong content."""

    def __init__(self, blob: Blob, where: str, digest: str) -> None:
        self.name = blob.name
        self.size = blob.size
        self.linked = False
        self.identity = digest
        self.revision = digest
        self._blob = blob
        self._where = where
        self._hash = hashlib.sha256()
        self._position = 0
        self._ahead: dict[int, Buffer] = {}
        self._checking = True
        self._lock = asyncio.Lock()

    async def read(self, offset: int, length: int) -> Buffer:
        """Return exactly the bytes asked for."""
        data = await self._blob.read(offset, length)
        async with self._lock:
            if self._checking:
                await self._follow(offset, data)
        return data

    async def _follow(self, offset: int, data: Buffer) -> None:
        if offset + len(data) > self._position:
            self._ahead[offset] = data
        self._checking = False  # for good if this is cancelled: the hash would be in between
        while (start := self._next()) is not None:
            piece = memoryview(self._ahead.pop(start))[self._position - start :]
            await asyncio.to_thread(self._hash.update, piece)
            self._position += len(piece)
        if self._position == self.size:
            found = f"sha256:{self._hash.hexdigest()}"
            if found != self.identity:
                raise DigestMismatch(
                    f"{self.name} in {self._where} has the content {found}, "
                    f"the manifest promises {self.identity}"
                )
            return
        self._checking = sum(map(len, self._ahead.values())) <= _MAX_AHEAD_BYTES
        if not self._checking:
            self._ahead.clear()

    def _next(self) -> int | None:
        """Return the start of a kept piece that continues what was hashed; drop old ones."""
        for start, data in sorted(self._ahead.items()):
            if start > self._position:
                return None
            if start + len(data) > self._position:
                return start
            del self._ahead[start]
        return None
