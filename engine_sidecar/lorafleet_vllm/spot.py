"""A region of a buffer's slots in plain numbers, because each torch view costs microseconds.

An adapter has hundreds of tensors and a plan is made for each load: a view is made only where it is
written to.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from lorafleet_vllm.pieces import ALL

if TYPE_CHECKING:
    import torch

    from lorafleet_vllm.pieces import Region


class Spot(NamedTuple):
    """A region of each slot of `slots`: `shape`, `stride` and `offset` are in elements of a slot."""

    slots: torch.Tensor
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dense: bool  # contiguous in each slot

    def at(self, index: int) -> torch.Tensor:
        """Return the region of slot `index`."""
        start = self.offset + index * self.slots.stride(0)
        return self.slots.as_strided(self.shape, self.stride, start)

    def flat(self, index: int) -> torch.Tensor:
        """Return the region of slot `index` as one row; it must be dense."""
        start = self.offset + index * self.slots.stride(0)
        return self.slots.as_strided((math.prod(self.shape),), (1,), start)

    def part(self, at: int) -> Spot:
        """Return element `at` of the first dimension."""
        shape, stride = self.shape[1:], self.stride[1:]
        offset = self.offset + at * self.stride[0]
        return Spot(self.slots, shape, stride, offset, _is_dense(shape, stride))


def spot_of(slots: torch.Tensor, region: Region) -> Spot:
    """Return the spot of `region` in `slots`, [max_loras, (experts,) rows, cols], contiguous.

    A single expert, as dense layers have it, is no dimension of it.
    """
    shape, stride = tuple(slots.shape)[1:], slots.stride()[1:]
    if len(shape) == 3 and shape[0] == 1:
        shape, stride = shape[1:], stride[1:]
    offset = slots.storage_offset()
    if region is ALL:
        return Spot(slots, shape, stride, offset, dense=True)
    rows, cols = region[0].indices(shape[-2]), region[1].indices(shape[-1])
    sizes = len(range(*rows)), len(range(*cols))
    offset += rows[0] * stride[-2] + cols[0] * stride[-1]
    steps = rows[2] * stride[-2], cols[2] * stride[-1]
    shape, stride = (*shape[:-2], *sizes), (*stride[:-2], *steps)
    return Spot(slots, shape, stride, offset, _is_dense(shape, stride))


def _is_dense(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    expected = 1
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        if size != 1 and step != expected:
            return False
        expected *= size
    return True
