"""What a slot has to hold after a fill, by one torch operation after the other on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from lorafleet_vllm.pieces import Fill


def plainly(fill: Fill) -> torch.Tensor:
    """Return what the slot has to hold, by one torch operation after the other."""
    slot = torch.full(fill.slots.shape[1:], 7, dtype=fill.slots.dtype)
    for rows, cols in fill.zeros:
        slot[..., rows, cols] = 0
    for piece in fill.pieces:
        part = slot[..., piece.region[0], piece.region[1]]
        part.copy_(piece.source)
        if isinstance(piece.scale, torch.Tensor) or piece.scale != 1.0:
            part.mul_(piece.scale)
    return slot
