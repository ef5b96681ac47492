"""A file whose digest is known beforehand: what is read of it is compared with that.

The digest is the file's identity. The content is hashed while it is read, in whatever order; what
nobody read is read for the check alone, when `verify` asks for it.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING

from lorafleet.errors import DigestMismatch

if TYPE_CHECKING:
    from lorafleet_operator.sources.base import Blob, Buffer

_MAX_AHEAD_BYTES = 128 << 20
"""Bytes kept because those before them have not come yet; above it they are read once more."""
_STEP_BYTES = 4 << 20


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
        self._lock = asyncio.Lock()

    async def read(self, offset: int, length: int) -> Buffer:
        """Return exactly the bytes asked for."""
        data = await self._blob.read(offset, length)
        async with self._lock:
            await self._follow(offset, data)
        return data

    async def verify(self) -> None:
        """Read what was not read, and raise `DigestMismatch` if the whole is another content.

        A transfer that resumes has read only the rest: the check still covers all of the file.
        """
        async with self._lock:
            await self._follow(0, b"")  # an empty file is complete as it is
            while self._position < self.size:
                gap = min(self._ahead, default=self.size) - self._position
                start = self._position
                await self._follow(start, await self._blob.read(start, min(gap, _STEP_BYTES)))

    async def _follow(self, offset: int, data: Buffer) -> None:
        if offset + len(data) > self._position:
            self._ahead[offset] = data
        while (start := self._next()) is not None:
            piece = memoryview(self._ahead.pop(start))[self._position - start :]
            await self._update(piece)
        if self._position == self.size:
            found = f"sha256:{self._hash.hexdigest()}"
            if found != self.identity:
                raise DigestMismatch(
                    f"{self.name} in {self._where} has the content {found}, "
                    f"the manifest promises {self.identity}"
                )
        elif sum(map(len, self._ahead.values())) > _MAX_AHEAD_BYTES:
            self._ahead.clear()

    async def _update(self, piece: memoryview) -> None:
        hashed, position = self._hash, self._position
        # From the beginning if this is cancelled: the hash would be somewhere in between.
        self._hash, self._position = hashlib.sha256(), 0
        await asyncio.to_thread(hashed.update, piece)
        self._hash, self._position = hashed, position + len(piece)

    def _next(self) -> int | None:
        """Return the start of a kept piece that continues what was hashed; drop old ones."""
        for start, data in sorted(self._ahead.items()):
            if start > self._position:
                return None
            if start + len(data) > self._position:
                return start
            del self._ahead[start]
        return None
