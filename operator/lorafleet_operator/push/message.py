"""The bytes of one message of a push: of which tensors they are, written and hashed in any thread."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from lorafleet_operator.crashpoint import crash_at

if TYPE_CHECKING:
    from collections.abc import Sequence

_WRITERS: Final = 4
"""Threads of all pushes together. hashlib and the disk let other threads run meanwhile."""


class Piece(NamedTuple):
    """Bytes of one tensor in a message: `start` to `stop` of its content."""

    tensor: int
    start: int
    stop: int
    begins: bool
    """Whether the tensor's first byte is here."""
    ends: bool

    @property
    def whole(self) -> bool:
        """Whether all of the tensor is in this message."""
        return self.begins and self.ends


class Message(NamedTuple):
    """What one message brings."""

    offset: int
    """In the file."""
    content: bytes | memoryview
    pieces: Sequence[Piece]
    """All of the content, in its order."""

    def store(self, descriptor: int) -> list[bytes]:
        """Write it to the file; return the SHA-256 of each tensor that is whole in it."""
        write(descriptor, self.offset, self.content)
        crash_at("push.piece")
        return [hashlib.sha256(self.of(piece)).digest() for piece in self.pieces if piece.whole]

    def of(self, piece: Piece) -> memoryview:
        """Return the bytes of one piece."""
        return memoryview(self.content)[piece.start : piece.stop]


@lru_cache(maxsize=1)
def writers() -> ThreadPoolExecutor:
    """Return the threads that write and hash what comes."""
    return ThreadPoolExecutor(_WRITERS, thread_name_prefix="pushed-bytes")


def write(descriptor: int, offset: int, content: bytes | memoryview) -> None:
    """Write all of it at that offset of a file."""
    with memoryview(content) as view:
        done = 0
        while done < len(view):
            done += os.pwrite(descriptor, view[done:], offset + done)
