"""A file whose server tells no version: its content is its identity.

It is read once in full, block by block; later reads are compared with that first reading, so
that content which changed in between is noticed although no header says so.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING

from lorafleet.errors import SourceChanged

if TYPE_CHECKING:
    from lorafleet_operator.sources.base import Blob, Buffer

_BLOCK_BYTES = 1 << 20
"""Unit of comparison: 32 bytes are kept for each."""
_STEP_BLOCKS = 4


async def hashed(blob: Blob, where: str, timeout_s: float) -> HashedBlob:
    """Read the whole blob in bounded steps and return it with its content as identity.

    `TimeoutError` after `timeout_s` seconds.
    """
    whole = hashlib.sha256()
    blocks: list[bytes] = []
    step = _STEP_BLOCKS * _BLOCK_BYTES
    async with asyncio.timeout(timeout_s):
        for offset in range(0, blob.size, step):
            data = await blob.read(offset, min(step, blob.size - offset))
            blocks += await asyncio.to_thread(_digests, data)
            await asyncio.to_thread(whole.update, data)
    return HashedBlob(blob, where, whole.hexdigest(), blocks)


class HashedBlob:
    """A blob whose every block is compared with the digest of its first reading."""

    def __init__(self, blob: Blob, where: str, digest: str, blocks: list[bytes]) -> None:
        self.name = blob.name
        self.size = blob.size
        self.linked = blob.linked
        self.identity = f"sha256:{digest}"
        self.revision = f"sha256:{digest[:12]}"
        self._blob = blob
        self._where = where
        self._blocks = blocks
        self._lock = asyncio.Lock()
        # The last block read: the next range begins in it, and a server without ranges could
        # give it again only from the file's beginning.
        self._kept: tuple[int, memoryview] = (-1, memoryview(b""))

    async def read(self, offset: int, length: int) -> Buffer:
        """Return exactly the bytes asked for, of the content that was read first."""
        async with self._lock:
            first = offset // _BLOCK_BYTES
            last = (offset + length - 1) // _BLOCK_BYTES
            data = await self._read_blocks(first, last)
            self._kept = (last, memoryview(data)[(last - first) * _BLOCK_BYTES :])
        skip = offset - first * _BLOCK_BYTES
        return memoryview(data)[skip : skip + length]

    async def _read_blocks(self, first: int, last: int) -> Buffer:
        kept, content = self._kept
        if first == last == kept:
            return content
        begin = (first + 1 if first == kept else first) * _BLOCK_BYTES
        end = min((last + 1) * _BLOCK_BYTES, self.size)
        data = await self._blob.read(begin, end - begin)
        found = await asyncio.to_thread(_digests, data)
        at = begin // _BLOCK_BYTES
        if found != self._blocks[at : at + len(found)]:
            raise SourceChanged(f"{self.name} in {self._where}: changed since it was resolved")
        return b"".join((content, data)) if first == kept else data


def _digests(data: Buffer) -> list[bytes]:
    view = memoryview(data)
    return [
        hashlib.sha256(view[at : at + _BLOCK_BYTES]).digest()
        for at in range(0, len(view), _BLOCK_BYTES)
    ]
