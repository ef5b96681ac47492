"""Tensors that are on the disk already: hashed, or copied and hashed, a few groups side by side."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from lorafleet_operator.push.message import write, writers

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from lorafleet_operator.sources.pushed import Place

_PIECE: Final = 4 << 20
_GROUP_BYTES: Final = 4 << 20
"""Small tensors are dealt with so many bytes at a time: a task for each would cost more than hashing it."""
_SIDE_BY_SIDE: Final = 4
_T = TypeVar("_T")


class Stored(NamedTuple):
    """A tensor's SHA-256 and its bytes."""

    digest: bytes
    size: int


def groups(tensors: Sequence[Stored], at: int) -> list[tuple[int, Sequence[Stored]]]:
    """Return the tensors in groups, each with its offset if they lie one after another from `at` on."""
    ends = list(accumulate((each.size for each in tensors), initial=at))
    found: list[tuple[int, Sequence[Stored]]] = []
    first = 0
    for following in range(1, len(tensors) + 1):
        if following == len(tensors) or ends[following] - ends[first] >= _GROUP_BYTES:
            found.append((ends[first], tensors[first:following]))
            first = following
    return found


def in_order(works: Sequence[Callable[[], _T]]) -> Generator[_T, None, None]:
    """Yield what each call returns, in their order; a few run at a time, and none any more at the end."""
    coming: deque[Future[_T]] = deque()
    try:
        for work in works:
            if len(coming) >= _SIDE_BY_SIDE:
                yield coming.popleft().result()
            coming.append(writers().submit(work))
        while coming:
            yield coming.popleft().result()
    finally:
        for each in coming:
            if not each.cancel():
                each.exception()  # waits: nothing reads or writes the files any more


def right(descriptor: int, at: int, tensors: Sequence[Stored]) -> int:
    """Return how many of the tensors, the first ones, lie in the file one after another from `at` on."""
    for count, tensor in enumerate(tensors):
        if _digest(descriptor, at, tensor.size) != tensor.digest:
            return count
        at += tensor.size
    return len(tensors)


def copied(
    data: Path, places: Mapping[bytes, Place], descriptor: int, at: int, tensors: Sequence[Stored]
) -> int:
    """Copy tensors from their places in files of `data` to the file, one after another from `at` on.

    Return how many, the first ones, have their digest.
    """
    for count, tensor in enumerate(tensors):
        place = places[tensor.digest]
        with (data / place.file).open("rb", buffering=0) as file:
            found = _digest(file.fileno(), place.offset, tensor.size, (descriptor, at))
        if found != tensor.digest:
            return count
        at += tensor.size
    return len(tensors)


def _digest(descriptor: int, offset: int, size: int, into: tuple[int, int] | None = None) -> bytes:
    """Return the SHA-256 of what lies there, shorter at the file's end; `into`: a file and an offset
    that it is copied to."""
    found = hashlib.sha256()
    for done in range(0, size, _PIECE):
        piece = os.pread(descriptor, min(_PIECE, size - done), offset + done)
        if not piece:
            break
        found.update(piece)
        if into is not None:
            write(into[0], into[1] + done, piece)
    return found.digest()
