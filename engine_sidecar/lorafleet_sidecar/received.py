"""The map of received chunks: one byte each, shared by all processes that receive."""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from lorafleet.errors import TransferInterrupted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_HERE = 1
_LOCK = "hhqqi"


class ReceivedMap:
    """One opened map. Each writer opens its own: claims belong to the descriptor."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._map = mmap.mmap(self._descriptor, os.fstat(self._descriptor).st_size)

    @staticmethod
    def create(path: Path, chunks: int) -> None:
        """Write the map of a transfer of which nothing has arrived."""
        path.write_bytes(bytes(chunks))

    def close(self) -> None:
        """Unmap and close."""
        self._map.close()
        os.close(self._descriptor)

    def missing(self) -> list[int]:
        """Return the indexes of the chunks that have not arrived."""
        return [index for index, state in enumerate(self._map[:]) if state != _HERE]

    def count(self) -> int:
        """Return how many chunks have arrived."""
        return self._map[:].count(_HERE)

    def arrived(self, before: bytes) -> tuple[list[int], bytes]:
        """Return the chunks that arrived since the map was `before`, and the map now.

        All of their bytes can be read: a chunk that somebody still claims is left for the next time.
        """
        now = bytearray(self._map[:])
        changed = np.frombuffer(now, np.uint8) > np.frombuffer(before, np.uint8)
        arrived = []
        for index in np.flatnonzero(changed).tolist():
            if self._is_claimed(index):
                now[index] = before[index]
            else:
                arrived.append(index)
        return arrived, bytes(now)

    def note(self, indexes: Iterable[int]) -> None:
        """Count chunks as received whose bytes came by another way; no writer may be at work."""
        for index in indexes:
            self._map[index] = _HERE

    @contextmanager
    def claim(self, index: int) -> Iterator[None]:
        """Be the only one who writes chunk `index`; it counts as received afterwards.

        Raises TransferInterrupted if it arrived before or if another stream is writing it.
        """
        self._lock(fcntl.F_WRLCK, index)
        try:
            if self._map[index] == _HERE:
                raise TransferInterrupted(f"chunk {index} was sent twice")
            yield
            self._map[index] = _HERE  # after its bytes: a kill between costs one chunk again
        finally:
            self._lock(fcntl.F_UNLCK, index)

    def _is_claimed(self, index: int) -> bool:
        # Some processors let others see the byte of the map before those of the chunk. Who finds the
        # lock free comes after its release, and sees both.
        asked = struct.pack(_LOCK, fcntl.F_WRLCK, os.SEEK_SET, index, 1, 0)
        answer = fcntl.fcntl(self._descriptor, fcntl.F_OFD_GETLK, asked)
        return bool(struct.unpack(_LOCK, answer)[0] != fcntl.F_UNLCK)

    def _lock(self, kind: int, index: int) -> None:
        # Locks of the open file, not of the process: two streams of one process exclude each
        # other too, and a killed process leaves none behind.
        request = struct.pack(_LOCK, kind, os.SEEK_SET, index, 1, 0)
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, request)
        except BlockingIOError:
            raise TransferInterrupted(f"chunk {index} is being sent by another stream") from None
