"""A tensor whose elements do not lie in row order, read as if they did.

`torch.save` keeps views as they are: a transposed factor is stored with its strides. Such a
tensor is read whole (it is small: at most one read) and reordered.
"""

from __future__ import annotations

import asyncio
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Literal

from lorafleet_operator.sources.base import MAX_READ_BYTES, Blob, Buffer

if TYPE_CHECKING:
    from collections.abc import Sequence

_FORMATS: dict[int, Literal["B", "H", "I", "Q"]] = {1: "B", 2: "H", 4: "I", 8: "Q"}


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
        ordered = await asyncio.to_thread(self._reorder, stored)
        return memoryview(ordered)[offset : offset + length]

    def _reorder(self, stored: Buffer) -> bytearray:
        """Copy element by element along the innermost axis, which memoryview does in C."""
        ordered = bytearray(self.size)
        source = memoryview(stored).cast("B").cast(_FORMATS[self._item])
        target = memoryview(ordered).cast(_FORMATS[self._item])
        # The longest axis is the one walked in C.
        axis = max(range(len(self._shape)), key=lambda index: self._shape[index])
        count = self._shape[axis]
        dense = [prod(self._shape[index + 1 :]) for index in range(len(self._shape))]
        outer = [range(extent if i != axis else 1) for i, extent in enumerate(self._shape)]
        for place in product(*outer):
            at = sum(i * stride for i, stride in zip(place, self._strides, strict=True))
            to = sum(i * stride for i, stride in zip(place, dense, strict=True))
            step, gap = dense[axis], self._strides[axis]
            target[to : to + (count - 1) * step + 1 : step] = source[
                at : at + (count - 1) * gap + 1 : gap
            ]
        return ordered
