"""Fingerprints of packed tensors, computed from the image while it is hashed (numpy).

What the number is: `lorafleet.fingerprint`. Few calls with much to do in each: each may have to wait until no
other thread runs Python, so many small ones keep two cores busy, however many there are.
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
_PIECE = 1 << 19
"""Values that are scaled at a time: 1 MiB of them, and as much to see whether all are finite."""
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
    scales = scales[:1] if (scales == scales[0]).all() else scales
    rows_of_each = max(1, len(values) // len(scales))
    total = 0
    for block, first in enumerate(range(0, len(values), _ROWS)):
        part = values[first : first + _ROWS]
        each = np.arange(first, first + len(part)) // rows_of_each if len(scales) > 1 else [0]
        sums = _row_sums(part, scales[each])
        total += int((sums * _row_weights(block)[: len(part)]).sum(dtype=np.uint64))
    return total % defined.MODULUS


def largest(scaling: Scaling) -> float:
    """Return the largest factor, without its sign."""
    return max(map(abs, (scaling,) if isinstance(scaling, float) else scaling))


def _row_sums(values: Array, scales: Array) -> Array:
    """Return the weighted sums over the words of each row; scales: one for each, or one for all."""
    columns, item = values.shape[1], values.dtype.itemsize
    weights = _column_weights(min(columns * item // 2, _COLUMNS))  # they repeat after that
    sums = np.zeros(len(values), np.uint64)
    scaled = (scales != 1.0).any()
    rows = max(1, _PIECE // columns) if scaled else len(values)
    step = min(columns, defined.EXACT_WORDS * 2 // item)
    for row in range(0, len(values), rows):
        for column in range(0, columns, step):
            piece = values[row : row + rows, column : column + step]
            if scaled:
                piece = _scaled(piece, scales[row : row + rows] if len(scales) > 1 else scales)
            first = column * item // 2 % _COLUMNS
            words = piece.view(np.int16)
            # Reads and widens a few values at a time in one call: nothing is copied.
            dots = np.einsum("ij,j->i", words, weights[first : first + words.shape[1]])
            sums[row : row + rows] += dots.astype(np.int64).view(np.uint64)
    return sums


def _scaled(piece: Array, scales: Array) -> Array:
    """Return the values times the scales, in float32 and rounded once. Raises OverflowError."""
    product = np.empty(piece.shape, piece.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        np.multiply(piece, scales[:, None], out=product, dtype=np.float32, casting="unsafe")
    if not is_finite(product):
        raise OverflowError
    return product


@functools.cache
def _column_table(size: int) -> Array:
    x = (np.arange(1, size + 1, dtype=np.uint64) * np.uint64(defined.COLUMN_STEP)) & _MASK
    x = ((x ^ (x >> np.uint64(9))) * np.uint64(defined.COLUMN_MIX)) & _MASK
    return (x ^ (x >> np.uint64(11))).astype(np.float64)


_MASK = np.uint64(_COLUMNS - 1)


def _column_weights(words: int) -> Array:
    # Tables of a few sizes serve tensors of any.
    return _column_table(max(1 << 12, 1 << (words - 1).bit_length()))[:words]


@functools.lru_cache(maxsize=8)
def _row_weights(block: int) -> Array:
    """Return the weights of the rows of one block of _ROWS."""
    x = np.arange(block * _ROWS + 1, (block + 1) * _ROWS + 1, dtype=np.uint64)
    x *= np.uint64(defined.ROW_STEP)
    x = (x ^ (x >> np.uint64(29))) * np.uint64(defined.ROW_MIX)
    return x ^ (x >> np.uint64(32))
