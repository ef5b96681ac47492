"""The fills of some layers as the few calls that carry them out, none of which waits.

A tensor gets into a slot by one copy where both sides are evenly spaced rows. Where the slot's rows
are too narrow for the copy engine, or in another order, its rows come as they lie to a temporary
and the device puts them in place. Small ones share a temporary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from lorafleet_vllm.batch import Batch, multiply
from lorafleet_vllm.copy2d import Pitched, copy_rows, pitched
from lorafleet_vllm.crate import SMALL_BYTES, Crate, Small, is_small
from lorafleet_vllm.pieces import ALL

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lorafleet_vllm.pieces import Fill, Region

NARROW_BYTES = 512
"""Rows of a slot that are narrower are put in place by the device."""


class Move(NamedTuple):
    """One copy into `targets[index]`.

    `rows` is None where both sides are contiguous. `back` is the order in which the dimensions of
    `source` are the target's, after a detour through a temporary; None: there is no detour.
    """

    targets: torch.Tensor
    source: torch.Tensor
    rows: Pitched | None
    back: tuple[int, ...] | None = None

    def enqueue(self, index: int) -> None:
        """Fill slot `index`, on the current stream."""
        target = self.targets[index]
        end = target if self.back is None else _temporary(self.source, target.device)
        if self.rows is None:
            end.copy_(self.source, non_blocking=True)
        else:
            copy_rows(end, self.source, self.rows)
        if self.back is not None:
            target.copy_(end.permute(self.back))


class Copies:
    """What fills have to do: `enqueue` does it for one slot."""

    def __init__(self, fills: Iterable[Fill]) -> None:
        self.zeros = Batch(torch._foreach_zero_)
        self.crates: list[Crate] = []
        self.moves: list[Move] = []
        self.scaled = Batch(multiply)
        self.scaled_by_expert: list[tuple[torch.Tensor, torch.Tensor]] = []
        small: list[Small] = []
        for fill in fills:
            for region in fill.zeros:
                self._zero(fill.slots, region)
            for piece in fill.pieces:
                if not piece.source.numel():
                    continue  # a rank that holds no row of it
                targets, scale = _part(fill.slots, piece.region), piece.scale
                if targets.dim() == piece.source.dim() + 2:
                    targets = targets.squeeze(1)  # of a dense layer: no experts
                if isinstance(scale, torch.Tensor):
                    self.scaled_by_expert.append((targets, scale))
                elif is_small(targets, piece.source):
                    small.append(Small(targets, piece.source, scale))
                    continue
                elif scale != 1.0:
                    self.scaled.add(targets, scale)
                self.moves.extend(_moves(targets, piece.source))
        if small:
            self.crates.append(Crate(small))

    def _zero(self, slots: torch.Tensor, region: Region) -> None:
        targets = _part(slots, region)
        if slots[0].nbytes <= SMALL_BYTES and not targets[0].is_contiguous():
            targets = slots  # all of it together with others, rather than a launch of its own
        if targets.numel():
            self.zeros.add(targets)

    def enqueue(self, index: int) -> None:
        """Fill slot `index`, on the current stream."""
        self.zeros.enqueue(index)
        for crate in self.crates:
            crate.enqueue(index)
        for move in self.moves:
            move.enqueue(index)
        self.scaled.enqueue(index)
        for targets, scale in self.scaled_by_expert:
            target = targets[index]
            target.mul_(scale.to(target.device, non_blocking=True))


def _part(slots: torch.Tensor, region: Region) -> torch.Tensor:
    return slots if region is ALL else slots[..., region[0], region[1]]


def _moves(targets: torch.Tensor, source: torch.Tensor) -> Iterator[Move]:
    """Yield the copies of `source`: one, unless its rows are not evenly spaced."""
    target = targets[0]
    if source.dtype == targets.dtype:
        if target.is_contiguous() and source.is_contiguous():
            yield Move(targets, source, None)
            return
        rows = pitched(target, source)
        if rows is not None and (rows.width >= NARROW_BYTES or target.is_contiguous()):
            yield Move(targets, source, rows)
            return
    order = sorted(range(source.dim()), key=source.stride, reverse=True)
    lying = source.permute(order)
    back = tuple(order.index(dimension) for dimension in range(source.dim()))
    if lying.is_contiguous():
        yield Move(targets, lying, None, back)
        return
    rows = pitched(_temporary(lying, torch.device("meta")), lying)
    if rows is not None:
        yield Move(targets, lying, rows, back)
        return
    for at, part in enumerate(source):
        yield from _moves(targets[:, at], part)


def _temporary(like: torch.Tensor, device: torch.device) -> torch.Tensor:
    return torch.empty(like.shape, dtype=like.dtype, device=device)
