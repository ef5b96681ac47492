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

_PIECE = 1 << 15
"""Values at a time: in a core's cache, and too few for BLAS to start threads of its own."""


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
    scales = np.repeat(scales, len(values) // len(scales))
    words = columns * kind.itemsize // 2
    weights = _column_weights(words)
    sums = np.zeros(len(values), np.uint64)
    rows = max(1, _PIECE // columns)
    step = min(columns, defined.EXACT_WORDS * 2 // kind.itemsize, _PIECE)
    for row in range(0, len(values), rows):
        for column in range(0, columns, step):
            piece = values[row : row + rows, column : column + step]
            bits = _bits(piece, scales[row : row + rows])
            first = column * kind.itemsize // 2
            dots = bits.astype(np.float64) @ weights[first : first + bits.shape[1]]
            sums[row : row + rows] += dots.astype(np.int64).view(np.uint64)
    return int((sums * _row_weights(len(values))).sum(dtype=np.uint64))


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


_MASK = np.uint64((1 << defined.COLUMN_BITS) - 1)


def _column_weights(words: int) -> Array:
    # Tables of a few sizes serve tensors of any.
    return _column_table(max(1 << 12, 1 << (words - 1).bit_length()))[:words]


def _row_weights(rows: int) -> Array:
    x = np.arange(1, rows + 1, dtype=np.uint64) * np.uint64(defined.ROW_STEP)
    x = (x ^ (x >> np.uint64(29))) * np.uint64(defined.ROW_MIX)
    return x ^ (x >> np.uint64(32))
