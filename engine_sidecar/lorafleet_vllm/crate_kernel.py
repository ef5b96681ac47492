"""Takes a crate apart in one launch on a GPU (Triton comes with vLLM there).

With torch each strided tensor is a launch and each view of a slot two microseconds: for an adapter
of a few MiB that took three times as long as the bus.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lorafleet_vllm.crate import Small
    from lorafleet_vllm.spot import Spot

_FIELDS = tl.constexpr(10)
_BLOCK, _PROGRAMS = 1024, 16  # values at a time, and how many programs share a tensor
_TABLE_BYTES = (1 << 10, 1 << 16)  # of tables that are usual, from and to; powers of two
_TABLES = 16  # of each size


# The shapes are in the table: one kernel for all of them.
@triton.jit(do_not_specialize=("index",))  # type: ignore[untyped-decorator]  # Triton is untyped
def _unpack(  # type: ignore[no-untyped-def]  # a kernel's arguments are Triton's
    crate,
    table,
    index,
    block: tl.constexpr,
    programs: tl.constexpr,
):
    row = table + tl.program_id(0) * _FIELDS
    slot_stride, source, count = tl.load(row + 1), tl.load(row + 2), tl.load(row + 3)
    rows, columns = tl.load(row + 4), tl.load(row + 5)
    begin = tl.load(row).to(tl.pointer_type(crate.dtype.element_ty)) + index * slot_stride
    expert_stride, row_stride, column_stride = (
        tl.load(row + 6),
        tl.load(row + 7),
        tl.load(row + 8),
    )
    scale = tl.load(row + 9).to(tl.int32).to(tl.float32, bitcast=True)
    for start in range(tl.program_id(1) * block, count, programs * block):
        at = start + tl.arange(0, block).to(tl.int64)
        inside = at < count
        column, above = at % columns, at // columns
        place = above // rows * expert_stride + above % rows * row_stride + column * column_stride
        value = tl.load(crate + source + at, inside & (source >= 0), 0.0)
        # As torch multiplies by a Python number: in float32, rounded once.
        scaled = (value.to(tl.float32) * scale).to(value.dtype)
        tl.store(begin + place, tl.where(scale == 1.0, value, scaled), inside)


class Table:
    """Where everything in a crate goes, and what is zeroed beside it, for any slot."""

    def __init__(self, items: Sequence[Small], zeros: Sequence[Spot]) -> None:
        rows, source = [], 0
        for item in items:
            rows.append(_entry(item.spot, source, item.scale))
            source += item.source.numel()
        rows += [_entry(spot, -1, 1.0) for spot in zeros]
        self.words = torch.tensor(rows)

    def load(self, device: torch.device) -> torch.Tensor:
        """Copy the table to the device, on the current stream; returns the temporary."""
        staged = torch.empty_like(self.words, pin_memory=True)  # torch reuses it when it is read
        return staged.copy_(self.words).to(device, non_blocking=True)


def unpack(crate: torch.Tensor, table: torch.Tensor, index: int) -> None:
    """Fill slot `index` from a crate and its table on the device, on the current stream."""
    _unpack[(len(table), _PROGRAMS)](crate, table, index, _BLOCK, _PROGRAMS)


def _entry(spot: Spot, source: int, scale: float) -> list[int]:
    """Return one row: address in slot 0, slot stride, source (-1: zeros), values, the last two
    lengths, the strides of all three dimensions, and the bits of the scale."""
    shape = (1,) * (3 - len(spot.shape)) + spot.shape
    stride = (0,) * (3 - len(spot.stride)) + spot.stride
    slots, item = spot.slots, spot.slots.element_size()
    address = slots.untyped_storage().data_ptr() + spot.offset * item
    count = shape[0] * shape[1] * shape[2]
    (bits,) = struct.unpack("<I", struct.pack("<f", scale))
    return [address, slots.stride(0), source, count, shape[1], shape[2], *stride, bits]


def warm(device: torch.device, dtype: torch.dtype) -> None:
    """Compile the kernel and have page-locked memory for tables: neither is for between two steps."""
    size, last = _TABLE_BYTES
    kept = []
    while size <= last:
        kept += [torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(_TABLES)]
        size *= 2
    nothing = torch.zeros((1, _FIELDS.value), dtype=torch.int64, device=device)
    unpack(torch.zeros(1, dtype=dtype, device=device), nothing, 0)
    torch.cuda.synchronize(device)
    kept.clear()
