"""Moves the bytes of a chunk to their places in the canonical image, casting where dtypes differ.

Equal dtypes are one memcpy. A cast goes in pieces of bounded size, so that it needs no second
buffer of the tensor's size. Every element that is written is checked to be finite.
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from lorafleet.dtypes import ITEM_BYTES, TORCH_NAMES
from lorafleet.errors import InvalidAdapter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lorafleet.header import SafetensorsHeader
    from lorafleet.layout import Copy

Array = np.ndarray[Any, Any]

PIECE = 1 << 16
"""Elements per step: source, result and scratch of one step stay in a core's cache."""

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
    into = None if scratch is None else scratch.view(words.dtype)[: words.size].reshape(words.shape)
    unsigned = np.bitwise_and(words, np.iinfo(words.dtype).max >> 1, out=into)
    return bool(unsigned.max(initial=0) < _INFINITY[values.dtype])


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

    def run(self, copies: Iterable[Copy], data: memoryview, begin: int) -> None:
        """Execute `copies`; `data` are the source's bytes from offset `begin` on.

        Raises InvalidAdapter for values that are not finite, before or after a cast.
        """
        for copy in copies:
            source = _strided(
                data,
                copy.src_offset - begin,
                DTYPES[copy.src_dtype],
                (copy.rows, copy.elements),
                (copy.src_row_stride, copy.src_step),
            )
            target = _strided(
                self._image,
                copy.dst_offset,
                DTYPES[copy.dst_dtype],
                (copy.rows, copy.elements),
                (copy.dst_row_stride, copy.dst_step),
            )
            self._move(source, target, copy)

    def _move(self, source: Array, target: Array, copy: Copy) -> None:
        rows = max(1, PIECE // max(1, copy.elements))
        for row in range(0, copy.rows, rows):
            for column in range(0, copy.elements, PIECE):
                part = np.s_[row : row + rows, column : column + PIECE]
                with np.errstate(over="ignore", invalid="ignore"):
                    np.copyto(target[part], source[part], casting="unsafe")
                if not is_finite(target[part], self._scratch):
                    self._refuse(source[part], target[part], copy, row, column)

    def _refuse(self, source: Array, target: Array, copy: Copy, row: int, column: int) -> None:
        """Name the tensor of the first bad value; a copy may run through several tensors."""
        finite = np.isfinite(target)
        bad_row, bad_column = divmod(int(finite.argmin()), finite.shape[1])
        element = (row + bad_row) * copy.src_row_stride + (column + bad_column) * copy.src_step
        offset = copy.src_offset + element * ITEM_BYTES[copy.src_dtype]
        name = self._header.tensors[bisect.bisect_right(self._begins, offset) - 1].name
        if np.isfinite(source[bad_row, bad_column]):
            cast = TORCH_NAMES[copy.dst_dtype]
            raise InvalidAdapter(
                f"adapter {self._adapter}: {name}: not finite after the cast to {cast}"
            )
        raise InvalidAdapter(f"adapter {self._adapter}: non-finite values in {name}")


def _strided(
    buffer: memoryview,
    offset: int,
    dtype: np.dtype[Any],
    shape: tuple[int, int],
    strides: tuple[int, int],
) -> Array:
    """Return a view of `shape` elements at byte `offset`; numpy checks that it stays inside."""
    rows, elements = shape
    if elements == 0 or rows == 0:
        return np.empty(shape, dtype)
    if rows == 1 and strides[1] == 1:  # the usual case, without the cost of as_strided
        return np.frombuffer(buffer, dtype, elements, offset).reshape(1, elements)
    size = dtype.itemsize
    return np.ndarray(shape, dtype, buffer, offset, (strides[0] * size, strides[1] * size))
