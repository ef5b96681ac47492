"""A tensor whose elements do not lie in row order, read as if they did.

`torch.save` keeps views as they are: a transposed factor is stored with its strides. Such a
tensor is read whole (it is small: at most one read), and the rows that are wanted are reordered.
"""

from __future__ import annotations

import asyncio
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from lorafleet_operator.sources.base import MAX_READ_BYTES, Blob, Buffer

if TYPE_CHECKING:
    from collections.abc import Sequence


def is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether the elements lie in row order without gaps; strides count elements."""
    expected = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent == 0:
            return True
        if extent != 1:
            if stride != expected:
                return False
            expected *= extent
    return True


def span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return how many elements of the storage the view reaches over, gaps included."""
    if 0 in shape:
        return 0
    return 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))


class StridedBlob:
    """The elements of one view in row order, as a blob of `prod(shape)` items.

    `start` is the view's first byte in `blob`, strides count elements. Raises `ValueError` for
    a view that repeats elements or reaches over more than one read.
    """

    def __init__(
        self, blob: Blob, start: int, shape: tuple[int, ...], strides: tuple[int, ...], item: int
    ) -> None:
        self._reach = span(shape, strides) * item
        self.size = prod(shape) * item
        if max(self._reach, self.size) > MAX_READ_BYTES:
            raise ValueError(f"is not contiguous and larger than {MAX_READ_BYTES} bytes")
        if self.size > self._reach:
            raise ValueError("is an expanded view; save it contiguous")
        self.name = blob.name
        self.identity = blob.identity
        self.revision = blob.revision
        self.linked = blob.linked
        self._blob = blob
        self._start = start
        self._shape = shape
        self._strides = strides
        self._item = item

    async def read(self, offset: int, length: int) -> Buffer:
        """Return bytes of the reordered tensor."""
        stored = await self._blob.read(self._start, self._reach)
        return await asyncio.to_thread(self._reordered, stored, offset, length)

    def _reordered(self, stored: Buffer, offset: int, length: int) -> memoryview:
        """Copy the rows of the first axis that the range touches."""
        kind = np.dtype(f"u{self._item}")
        strides = [stride * self._item for stride in self._strides]
        view: np.ndarray[Any, Any] = np.ndarray(self._shape, kind, stored, strides=strides)
        row = self.size // self._shape[0]
        first, end = offset // row, -(-(offset + length) // row)
        ordered = np.ascontiguousarray(view[first:end]).data.cast("B")
        return ordered[offset - first * row :][:length]
