"""Moves the bytes of a chunk to their places in the canonical image, casting where dtypes differ.

Copies that repeat at equal distances (an expert each) are done as one array of three dimensions, in
pieces that stay in a core's cache: experts that interleave in the source share its cache lines. Every
element that is written is checked to be finite.
"""

from __future__ import annotations

import bisect
from math import prod
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import ml_dtypes
import numpy as np
from lorafleet.dtypes import ITEM_BYTES, TORCH_NAMES
from lorafleet.errors import InvalidAdapter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lorafleet.header import SafetensorsHeader
    from lorafleet.layout import Copy

Array = np.ndarray[Any, Any]

PIECE = 1 << 16
"""Elements per step: source, result and scratch of one step stay in a core's cache."""
Three = tuple[int, int, int]

DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
}
_WORDS = {2: np.uint16, 4: np.uint32, 8: np.uint64}
# A value is infinite or NaN exactly if, without its sign, its bits are at least these.
_INFINITY = {
    DTYPES["BF16"]: 0x7F80,
    DTYPES["F16"]: 0x7C00,
    DTYPES["F32"]: 0x7F80_0000,
    DTYPES["F64"]: 0x7FF0_0000_0000_0000,
}


def is_finite(values: Array, scratch: Array | None = None) -> bool:
    """Return whether all are; several times as fast as numpy for bfloat16.

    `scratch` is memory of at least the same size, or None for some of its own.
    """
    words = values.view(_WORDS[values.itemsize])
    words = words.transpose(np.argsort(words.strides)[::-1])  # read in the order of memory
    into = None if scratch is None else scratch.view(words.dtype)[: words.size].reshape(words.shape)
    unsigned = np.bitwise_and(words, np.iinfo(words.dtype).max >> 1, out=into)
    return bool(unsigned.max(initial=0) < _INFINITY[values.dtype])


class Block(NamedTuple):
    """Copies at equal distances: axes are copies, rows, elements; strides are in bytes."""

    src_offset: int
    dst_offset: int
    src_dtype: str
    dst_dtype: str
    shape: Three
    src_strides: Three
    dst_strides: Three

    def first(self) -> Block:
        """Return the first of the copies."""
        return self._replace(shape=(1, *self.shape[1:]))


def blocks(copies: Iterable[Copy]) -> Iterator[Block]:
    """Join copies of one geometry whose offsets rise by the same steps on both sides."""
    families: dict[tuple[Any, ...], list[Copy]] = {}
    for copy in copies:
        families.setdefault(copy[2:], []).append(copy)  # all but the two offsets
    for family in families.values():
        family.sort(key=attrgetter("dst_offset"))  # one projection's experts after another's
        at = 0
        while at < len(family):
            first, count = family[at], 1
            src_step = dst_step = 0
            while at + count < len(family):
                copy = family[at + count]
                if count == 1:
                    src_step = copy.src_offset - first.src_offset
                    dst_step = copy.dst_offset - first.dst_offset
                elif (
                    copy.src_offset != first.src_offset + count * src_step
                    or copy.dst_offset != first.dst_offset + count * dst_step
                ):
                    break
                count += 1
            at += count
            src_item, dst_item = ITEM_BYTES[first.src_dtype], ITEM_BYTES[first.dst_dtype]
            yield Block(
                first.src_offset,
                first.dst_offset,
                first.src_dtype,
                first.dst_dtype,
                (count, first.rows, first.elements),
                (src_step, first.src_row_stride * src_item, first.src_step * src_item),
                (dst_step, first.dst_row_stride * dst_item, first.dst_step * dst_item),
            )


class Converter:
    """Executes copies into one image.

    `image` is the writable canonical data section, `header` the source's (for names in
    messages).
    """

    def __init__(self, header: SafetensorsHeader, image: memoryview, adapter: str) -> None:
        self._header = header
        self._begins = [tensor.begin for tensor in header.tensors]
        self._image = image
        self._adapter = adapter
        self._scratch = np.empty(PIECE, np.uint64)
        self._turning = np.empty(PIECE * 3 // 2, np.uint64)

    def run(self, copies: Iterable[Copy], data: memoryview, begin: int) -> None:
        """Execute `copies`; `data` are the source's bytes from offset `begin` on.

        Raises InvalidAdapter for values that are not finite, before or after a cast.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            for block in blocks(copies):
                if 0 not in block.shape:
                    # numpy checks that both stay inside of their buffers.
                    src_dtype, dst_dtype = DTYPES[block.src_dtype], DTYPES[block.dst_dtype]
                    at, to = block.src_offset - begin, block.dst_offset
                    source = np.ndarray(block.shape, src_dtype, data, at, block.src_strides)
                    target = np.ndarray(block.shape, dst_dtype, self._image, to, block.dst_strides)
                    if block.src_strides[0]:
                        self._move(source, target, block)
                    else:  # one factor for all
                        self._move(source[:1], target[:1], block.first())
                        np.copyto(target[1:], target[:1])

    def _move(self, source: Array, target: Array, block: Block) -> None:
        size = _piece(block)
        order = _by_distance(block.shape, block.src_strides)
        turned = order[2] != _by_distance(block.shape, block.dst_strides)[2]
        for part in _parts(block.shape, size):
            written = target[part]
            if turned:
                written = self._rows_for(written, order)
            np.copyto(written, source[part], casting="unsafe")
            if not is_finite(written, self._scratch):
                self._refuse(source[part], written, block, part)
            if turned:
                np.copyto(target[part], written)

    def _rows_for(self, target: Array, order: list[int]) -> Array:
        """Return memory for the values of `target` that lie in the source's order."""
        rows, columns, elements = (target.shape[axis] for axis in order)
        # Rows at a power of two would all fall on the same few lines of a cache.
        pitch = elements + 32 if elements % 64 == 0 else elements
        memory = self._turning.view(target.dtype)[: rows * columns * pitch]
        ordered = memory.reshape(rows, columns, pitch)[:, :, :elements]
        return ordered.transpose(np.argsort(order))

    def _refuse(
        self, source: Array, written: Array, block: Block, part: tuple[slice, slice, slice]
    ) -> None:
        """Name the tensor of the first bad value; a block may run through several tensors."""
        bad = np.argwhere(~np.isfinite(written))[0]
        offset = block.src_offset + sum(
            (axis.start + int(place)) * stride
            for axis, place, stride in zip(part, bad, block.src_strides, strict=True)
        )
        name = self._header.tensors[bisect.bisect_right(self._begins, offset) - 1].name
        if np.isfinite(source[tuple(bad)]):
            cast = TORCH_NAMES[block.dst_dtype]
            raise InvalidAdapter(
                f"adapter {self._adapter}: {name}: not finite after the cast to {cast}"
            )
        raise InvalidAdapter(f"adapter {self._adapter}: non-finite values in {name}")


def _by_distance(shape: Three, strides: Three) -> list[int]:
    """Return the axes, that whose elements lie closest last, those that do not move first."""
    moving = [shape[axis] > 1 and strides[axis] != 0 for axis in range(3)]
    return sorted(range(3), key=lambda axis: (moving[axis], -abs(strides[axis])))


def _piece(block: Block) -> list[int]:
    """Return a part's shape, of at most PIECE elements: long runs on both sides, then the rest."""
    order = _by_distance(block.shape, block.src_strides)
    across = _by_distance(block.shape, block.dst_strides)[2]
    size = [1, 1, 1]
    wanted = [(order[2], 256), (across, 64), *((axis, PIECE) for axis in reversed(order))]
    for axis, most in wanted:
        room = PIECE // prod(size) * size[axis]
        size[axis] = max(size[axis], min(block.shape[axis], most, room))
    return size


def _parts(shape: Three, size: list[int]) -> Iterator[tuple[slice, slice, slice]]:
    for first in range(0, shape[0], size[0]):
        for row in range(0, shape[1], size[1]):
            for element in range(0, shape[2], size[2]):
                yield np.s_[
                    first : first + size[0], row : row + size[1], element : element + size[2]
                ]
