"""The fingerprint of a part in one pass over it, on a GPU (Triton comes with vLLM there).

`fingerprints` defines the same number in torch for any device, but through float64 copies of all
values: fifty times slower, and in the way of the decode steps beside it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from lorafleet import fingerprint as defined

_ROWS, _COLUMNS = 16, (64, 256)  # of a program's block; narrow ones for lora_B
_ROW_STEP = tl.constexpr(defined.ROW_STEP - defined.MODULUS)
_ROW_MIX = tl.constexpr(defined.ROW_MIX - defined.MODULUS)
_COLUMN_STEP = tl.constexpr(defined.COLUMN_STEP)
_COLUMN_MIX = tl.constexpr(defined.COLUMN_MIX)
_NUMBERS = ("first_expert", "first_row", "first_column", "rows_each", "rows", "columns")
_MASK = tl.constexpr((1 << defined.COLUMN_BITS) - 1)


# One kernel for all shapes: compiling takes longer than the whole proof.
@triton.jit(do_not_specialize=_NUMBERS)  # type: ignore[untyped-decorator]  # Triton is untyped
def _part(  # type: ignore[no-untyped-def]  # a kernel's arguments are Triton's
    words,
    total,
    rows,
    columns,
    expert_stride,
    row_stride,
    first_expert,
    first_row,
    first_column,
    rows_each,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
):
    expert = tl.program_id(1)
    row = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    begin = words + expert.to(tl.int64) * expert_stride + row.to(tl.int64) * row_stride
    sums = tl.zeros((block_rows,), tl.int64)
    for start in range(0, columns, block_columns):
        column = start + tl.arange(0, block_columns)
        inside = (row < rows)[:, None] & (column < columns)[None, :]
        bits = tl.load(begin[:, None] + column[None, :], inside, 0).to(tl.int64)
        x = ((first_column + column + 1).to(tl.int64) * _COLUMN_STEP) & _MASK
        x = ((x ^ (x >> 9)) * _COLUMN_MIX) & _MASK
        weight = x ^ (x >> 11)
        sums += tl.sum(bits * weight[None, :], 1)
    canonical = (first_expert + expert).to(tl.int64) * rows_each + first_row + row
    x = (canonical + 1) * _ROW_STEP
    x = (x ^ ((x >> 29) & ((1 << 35) - 1))) * _ROW_MIX
    x = x ^ ((x >> 32) & ((1 << 32) - 1))
    tl.atomic_add(total, tl.sum(sums * x, 0))


def part_fingerprint(
    values: torch.Tensor, first: tuple[int, int, int], rows_each: int
) -> torch.Tensor:
    """Return what `fingerprints.part_fingerprint` does, for 16-bit values with columns side by side."""
    experts, rows, columns = values.shape
    total = torch.zeros((), dtype=torch.int64, device=values.device)
    words = values.view(torch.int16)
    _part[(triton.cdiv(rows, _ROWS), experts)](
        words,
        total,
        rows,
        columns,
        words.stride(0),
        words.stride(1),
        *first,
        rows_each,
        _ROWS,
        _COLUMNS[columns > _COLUMNS[0]],
    )
    return total


def warm(device: torch.device) -> None:
    """Compile the kernel, which takes a second or two: between two steps that would be too long."""
    for columns in _COLUMNS:
        values = torch.zeros((1, 1, columns), dtype=torch.int16, device=device)
        part_fingerprint(values, (0, 0, 0), 1)
    torch.cuda.synchronize(device)
