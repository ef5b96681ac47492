"""What a slot gets, as it is planned: views of the host's memory, and where in the slot they go."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import torch

Region = tuple[slice, slice]  # rows and columns of the last two dimensions
ALL: Region = (slice(None), slice(None))
Scale: TypeAlias = "float | torch.Tensor"


class Piece(NamedTuple):
    """One tensor's place in a slot: `source` has the shape of `region`.

    `scale` multiplies the copied values in place: a number, or a float32 tensor [experts, 1, 1].
    """

    region: Region
    source: torch.Tensor
    scale: Scale = 1.0


class Fill(NamedTuple):
    """What one stacked buffer of a layer gets: `slots[index]` is the adapter's share of it.

    `slots` is [max_loras, experts or 1, rows, cols], or [max_loras, rows, cols] (embedding A).
    Pieces and zeros together cover it, and nothing overlaps, but what lies on zeros that are ALL.
    """

    slots: torch.Tensor
    pieces: tuple[Piece, ...] = ()
    zeros: tuple[Region, ...] = (ALL,)
