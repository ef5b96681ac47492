"""The number by which the engine proves a slot: what it is, apart from who computes it.

A canonical tensor is a matrix of rows (experts one below the other) and columns, its values as the
engine's slot must hold them: lora_A as it is, lora_B times the scaling, rounded to the dtype. Each
value is one or more 16-bit words, read as signed integers, the lowest first. Then

    fingerprint = sum over rows of row_weight(row) * sum over words of column_weight(word) * bits

modulo 2^64. It depends on every bit and on its place; zeros add nothing, so that padding to the
engine's rank does not matter; and it is additive: the numbers of disjoint parts of a tensor, such as
those of tensor-parallel ranks, add up to that of the whole.

The inner sum is exact in float64 up to `EXACT_WORDS` words, in any order: a matrix product does it,
in numpy and on any device.
"""

from __future__ import annotations

COLUMN_BITS = 20
EXACT_WORDS = 1 << 17
"""|bits| <= 2^15, weights < 2^20: so many products stay below 2^53."""

ROW_STEP = 0x9E3779B97F4A7C15
ROW_MIX = 0xBF58476D1CE4E5B9
COLUMN_STEP = 0x9E3B1
COLUMN_MIX = 0xB3C6D
MODULUS = 1 << 64
_COLUMNS = 1 << COLUMN_BITS


def row_weight(row: int) -> int:
    """Return the weight of one row, below 2^64."""
    x = (row + 1) * ROW_STEP % MODULUS
    x = (x ^ (x >> 29)) * ROW_MIX % MODULUS
    return x ^ (x >> 32)


def column_weight(word: int) -> int:
    """Return the weight of one word of a row, below 2^20; no two of the first 2^20 are equal."""
    x = (word + 1) * COLUMN_STEP % _COLUMNS
    x = (x ^ (x >> 9)) * COLUMN_MIX % _COLUMNS
    return x ^ (x >> 11)


def to_text(fingerprint: int) -> str:
    """Return 16 hex digits."""
    return f"{fingerprint % MODULUS:016x}"
