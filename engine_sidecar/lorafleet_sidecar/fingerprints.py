"""Fingerprints of packed tensors, computed from the image while it is hashed (numpy).

What the number is: `lorafleet.fingerprint`. A takes half as long as its SHA-256, a scaled B as long.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from lorafleet import fingerprint as defined
from lorafleet.dtypes import SAFETENSORS_NAMES

from lorafleet_sidecar.convert import DTYPES, is_finite

Array = np.ndarray[Any, Any]
Scaling = float | tuple[float, ...]

_COLUMNS = 1 << defined.COLUMN_BITS
_PIECE = 1 << 17
"""Values at a time: 2 MiB in all, and too few for BLAS to start threads of its own. Each piece is a dozen
calls, for each of which a thread waits until no other runs Python: with a quarter of this, 6.29 GiB took
sixteen cores 15 s, at the work of two."""
_ROWS = 1 << 16
"""Rows at a time: a tensor of rank 1 has as many as values, and each takes some numbers."""


def tensor_fingerprint(
    packed: bytes | memoryview, shape: tuple[int, ...], dtype: str, scaling: Scaling = 1.0
) -> int:
    """Return the fingerprint of one packed tensor ([rows, cols] or [experts, rows, cols]).

    `dtype` is torch's name. `scaling` is one number, or one for each expert; it is applied as the
    engine does it: multiplied in float32, rounded to `dtype`. Raises OverflowError for a product that
    is not finite then.
    """
    kind = DTYPES[SAFETENSORS_NAMES[dtype]]
    columns = shape[-1]
    values = np.frombuffer(packed, kind, math.prod(shape)).reshape(-1, columns)
    scales = np.asarray(scaling, np.float32).reshape(-1)
    rows_of_each = max(1, len(values) // len(scales))
    total = 0
    for first in range(0, len(values), _ROWS):
        part = values[first : first + _ROWS]
        each = np.arange(first, first + len(part)) // rows_of_each if len(scales) > 1 else [0]
        sums = _row_sums(part, np.broadcast_to(scales[each], len(part)))
        total += int((sums * _row_weights(first, len(part))).sum(dtype=np.uint64))
    return total % defined.MODULUS


def largest(scaling: Scaling) -> float:
    """Return the largest factor, without its sign."""
    return max(map(abs, (scaling,) if isinstance(scaling, float) else scaling))


def _row_sums(values: Array, scales: Array) -> Array:
    """Return the weighted sums over the words of each row."""
    columns, item = values.shape[1], values.dtype.itemsize
    weights = _column_weights(min(columns * item // 2, _COLUMNS))  # they repeat after that
    sums = np.zeros(len(values), np.uint64)
    rows = max(1, _PIECE // columns)
    step = min(columns, defined.EXACT_WORDS * 2 // item, _PIECE)
    for row in range(0, len(values), rows):
        for column in range(0, columns, step):
            piece = values[row : row + rows, column : column + step]
            bits = _bits(piece, scales[row : row + rows])
            first = column * item // 2 % _COLUMNS
            dots = bits.astype(np.float64) @ weights[first : first + bits.shape[1]]
            sums[row : row + rows] += dots.astype(np.int64).view(np.uint64)
    return sums


def _bits(piece: Array, scales: Array) -> Array:
    """Return the scaled values' words."""
    if (scales != 1.0).any():
        with np.errstate(over="ignore"):
            piece = (piece.astype(np.float32) * scales[:, None]).astype(piece.dtype)
        if not is_finite(piece):
            raise OverflowError
    return np.ascontiguousarray(piece).view(np.int16)


@functools.cache
def _column_table(size: int) -> Array:
    x = (np.arange(1, size + 1, dtype=np.uint64) * np.uint64(defined.COLUMN_STEP)) & _MASK
    x = ((x ^ (x >> np.uint64(9))) * np.uint64(defined.COLUMN_MIX)) & _MASK
    return (x ^ (x >> np.uint64(11))).astype(np.float64)


_MASK = np.uint64(_COLUMNS - 1)


def _column_weights(words: int) -> Array:
    # Tables of a few sizes serve tensors of any.
    return _column_table(max(1 << 12, 1 << (words - 1).bit_length()))[:words]


def _row_weights(first: int, rows: int) -> Array:
    x = np.arange(first + 1, first + rows + 1, dtype=np.uint64) * np.uint64(defined.ROW_STEP)
    x = (x ^ (x >> np.uint64(29))) * np.uint64(defined.ROW_MIX)
    return x ^ (x >> np.uint64(32))
