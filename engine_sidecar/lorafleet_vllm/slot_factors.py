"""One pair of LoRA factors, and where they lie in a slot of the engine's rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from lorafleet.errors import InvalidAdapter, RankTooHigh

from lorafleet_vllm.pieces import ALL, Fill, Piece, Region

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lorafleet_vllm.pieces import Scale


@dataclass(frozen=True)
class Pair:
    """One module's unscaled arena views and its scaling (one number, or one for each expert).

    Equal `fingerprint_a`, where known, means equal A.
    """

    name: str
    a: torch.Tensor
    b: torch.Tensor
    scaling: tuple[float, ...]
    fingerprint_a: str = ""


Parts = list[Pair | None]


def factor_a(name: str, slots: torch.Tensor, a: torch.Tensor) -> Fill:
    """Return the fill of a lora_A buffer: rows [0, rank), all columns."""
    *experts, rank, wide = a.shape
    _, *places, limit, width = slots.shape
    check_features(name, "lora_A", [*experts, wide], [*places, width])
    check_rank(name, rank, limit)
    zeros = ((slice(rank, None), slice(None)),) if rank < limit else ()
    return Fill(slots, (Piece(_part(slice(rank), slice(None), zeros), a),), zeros)


def factor_b(
    name: str, slots: torch.Tensor, b: torch.Tensor | Sequence[torch.Tensor], scale: Scale
) -> Fill:
    """Return the fill of a lora_B buffer: all rows, columns [0, rank), scaled.

    `b` may come in several blocks of rows, one below the other.
    """
    blocks = [b] if isinstance(b, torch.Tensor) else b
    first = blocks[0]
    *experts, rows, rank = first.shape
    _, *places, limit = slots.shape
    rows += sum(block.shape[-2] for block in blocks[1:])
    check_features(name, "lora_B", [*experts, rows], places)
    check_rank(name, rank, limit)
    zeros = ((slice(None), slice(rank, None)),) if rank < limit else ()
    if len(blocks) == 1:
        return Fill(slots, (Piece(_part(slice(None), slice(rank), zeros), first, scale),), zeros)
    pieces, start = [], 0
    for block in blocks:
        stop = start + block.shape[-2]
        pieces.append(Piece((slice(start, stop), slice(rank)), block, scale))
        start = stop
    return Fill(slots, tuple(pieces), zeros)


def _part(rows: slice, cols: slice, rest: tuple[Region, ...]) -> Region:
    return (rows, cols) if rest else ALL


def check_rank(name: str, rank: int, limit: int) -> None:
    """Raise RankTooHigh above `limit`, the engine's max_lora_rank."""
    if rank > limit:
        raise RankTooHigh(f"{name}: LoRA rank {rank} is greater than max_lora_rank {limit}")


def check_features(name: str, factor: str, found: list[int], wanted: list[int]) -> None:
    """Raise InvalidAdapter unless `found` are the features that the slot has."""
    dense = wanted[1:] if len(wanted) == len(found) + 1 and wanted[0] == 1 else wanted
    if found != dense:
        raise InvalidAdapter(f"{name}: {factor} has features {found}, this engine's slot {dense}")
