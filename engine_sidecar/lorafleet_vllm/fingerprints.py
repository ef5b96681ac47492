"""Fingerprints of what lies in a slot, computed where it lies (torch).

What the number is: `lorafleet.fingerprint`. Temporary memory is one piece of a few million values,
none on a GPU; no more than a number for each part crosses the bus.
"""

from __future__ import annotations

import functools

import torch
from lorafleet import fingerprint as defined

_PIECE = 1 << 22  # values at a time; float64 makes 32 MiB of them


def part_fingerprint(
    values: torch.Tensor, first: tuple[int, int, int], rows_each: int
) -> torch.Tensor:
    """Return the fingerprint, an int64 scalar on the device, of a part of a canonical tensor.

    `values` is [experts, rows, cols] of any strides; `first` is the (expert, row, column) of the
    canonical tensor that its first value is; `rows_each` the canonical rows of each expert.
    """
    if values.is_cuda and values.dtype.itemsize == 2 and values.stride(2) == 1:
        from lorafleet_vllm import fingerprint_kernel  # needs a driver

        return fingerprint_kernel.part_fingerprint(values, first, rows_each)
    experts, rows, columns = values.shape
    expert, row, column = first
    lanes = values.dtype.itemsize // 2
    step = min(columns, defined.EXACT_WORDS // lanes)
    total = torch.zeros((), dtype=torch.int64, device=values.device)
    height = max(1, _PIECE // max(1, step * rows))  # experts at a time; if one fits
    depth = max(1, min(rows, _PIECE // max(1, step)))
    for e in range(0, experts, height):
        for r in range(0, rows, depth):
            block = values[e : e + height, r : r + depth]
            weights = _row_weights(block, (expert + e, row + r), rows_each)
            for c in range(0, columns, step):
                words = _words(block[..., c : c + step], lanes)
                dots = words @ _column_weights((column + c) * lanes, words.shape[-1], block.device)
                total += (dots.to(torch.int64) * weights).sum()
    return total


def _words(block: torch.Tensor, lanes: int) -> torch.Tensor:
    if lanes == 1:
        return block.view(torch.int16).to(torch.float64)
    return block.contiguous().view(torch.int16).to(torch.float64)


def _row_weights(block: torch.Tensor, first: tuple[int, int], rows_each: int) -> torch.Tensor:
    """Return the weights of a block's rows, [experts, rows]."""
    experts, rows, _ = block.shape
    start = first[0] * rows_each + first[1]
    table = _row_table(_rounded(start + (experts - 1) * rows_each + rows), block.device)
    return table.as_strided((experts, rows), (rows_each, 1), start)


def _column_weights(first: int, count: int, device: torch.device) -> torch.Tensor:
    return _column_table(_rounded(first + count), device)[first : first + count]


@functools.cache
def _row_table(size: int, device: torch.device) -> torch.Tensor:
    x = torch.arange(1, size + 1, device=device) * _signed(defined.ROW_STEP)
    x = (x ^ _shifted(x, 29)) * _signed(defined.ROW_MIX)
    return x ^ _shifted(x, 32)


@functools.cache
def _column_table(size: int, device: torch.device) -> torch.Tensor:
    mask = (1 << defined.COLUMN_BITS) - 1
    x = (torch.arange(1, size + 1, device=device) * defined.COLUMN_STEP) & mask
    x = ((x ^ (x >> 9)) * defined.COLUMN_MIX) & mask
    return (x ^ (x >> 11)).to(torch.float64)


def _rounded(size: int) -> int:
    """Return a power of two: few tables serve all tensors, a megabyte or two in all."""
    return 1 << max(12, (size - 1).bit_length())


def _shifted(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Return the logical right shift of int64 (torch's own keeps the sign)."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    return value - defined.MODULUS if value >= defined.MODULUS >> 1 else value
