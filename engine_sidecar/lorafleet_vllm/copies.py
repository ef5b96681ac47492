"""The fills of some layers as the few calls that carry them out, none of which waits.

A tensor gets into a slot by one copy where both sides are evenly spaced rows. Where the slot's rows
are too narrow for the copy engine, or in another order, its rows come as they lie to a temporary
and the device puts them in place. Small ones share a temporary.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import torch

from lorafleet_vllm.batch import Batch, multiply
from lorafleet_vllm.beside import beside, join
from lorafleet_vllm.copy2d import Pitched, copy_rows, pitched
from lorafleet_vllm.crate import SMALL_BYTES, Crate, Small, is_small
from lorafleet_vllm.pieces import ALL

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lorafleet_vllm.pieces import Fill, Region

NARROW_BYTES = 512
"""Rows of a slot that are narrower are put in place by the device."""


class Move(NamedTuple):
    """One copy into `targets[index]`; `rows` is None where both sides are contiguous."""

    targets: torch.Tensor
    source: torch.Tensor
    rows: Pitched | None

    def enqueue(self, index: int) -> None:
        """Fill slot `index`, on the current stream."""
        _copy(self.targets[index], self.source, self.rows)


class Detour(NamedTuple):
    """One copy to a temporary, and from there into `targets[index]`.

    `back` is the order in which the dimensions of `source` are the target's.
    """

    targets: torch.Tensor
    source: torch.Tensor
    rows: Pitched | None
    back: tuple[int, ...]

    def load(self) -> torch.Tensor:
        """Copy to the device, on the current stream; returns the temporary."""
        memory = _like(self.source, self.targets.device)
        _copy(memory, self.source, self.rows)
        return memory

    def unpack(self, memory: torch.Tensor, index: int) -> None:
        """Fill slot `index` from the temporary, on the current stream."""
        self.targets[index].copy_(memory.permute(self.back))


class Copies:
    """What fills have to do: `enqueue` does it for one slot.

    `first` are copies whose values are still to be scaled, `rest` are the others.
    """

    def __init__(self, fills: Iterable[Fill]) -> None:
        self.zeros = Batch(torch._foreach_zero_)
        self.detours: list[Crate | Detour] = []
        self.first: list[Move] = []
        self.rest: list[Move] = []
        self.scaled = Batch(multiply)
        self.scaled_by_expert: list[tuple[torch.Tensor, torch.Tensor]] = []
        small: defaultdict[torch.dtype, list[Small]] = defaultdict(list)
        for fill in fills:
            for region in fill.zeros:
                self._zero(fill.slots, region)
            for piece in fill.pieces:
                source, scale = piece.source, piece.scale
                if not source.numel():
                    continue  # a rank that holds no row of it
                targets = _part(fill.slots, piece.region)
                if targets.dim() == source.dim() + 2:
                    targets = targets.squeeze(1)  # of a dense layer: no experts
                moves = self.first
                if isinstance(scale, torch.Tensor):
                    self.scaled_by_expert.append((targets, scale))
                elif is_small(targets, source):
                    small[targets.dtype].append(Small(targets, source, scale))
                    continue
                elif scale == 1.0:
                    moves = self.rest
                else:
                    self.scaled.add(targets, scale)
                for way in _ways(targets, source):
                    if isinstance(way, Move):
                        moves.append(way)
                    else:
                        self.detours.append(way)
        self.detours.extend(Crate(items) for items in small.values())

    def _zero(self, slots: torch.Tensor, region: Region) -> None:
        targets = _part(slots, region)
        if slots[0].nbytes <= SMALL_BYTES and not targets[0].is_contiguous():
            targets = slots  # all of it together with others, rather than a launch of its own
        if targets.numel():
            self.zeros.add(targets)

    def enqueue(self, index: int) -> None:
        """Fill slot `index`, on the current stream.

        What the device has to do with what arrives is done while `rest` arrives.
        """
        self.zeros.enqueue(index)
        arrived = [(detour, detour.load()) for detour in self.detours]
        for move in self.first:
            move.enqueue(index)
        if not self.rest:
            self._place(arrived, index)
            return
        device = self.rest[0].targets.device
        with beside(device):
            self._place(arrived, index)
        for move in self.rest:
            move.enqueue(index)
        join(device)

    def _place(self, arrived: list[tuple[Crate | Detour, torch.Tensor]], index: int) -> None:
        for detour, memory in arrived:
            detour.unpack(memory, index)
        self.scaled.enqueue(index)
        for targets, scale in self.scaled_by_expert:
            target = targets[index]
            target.mul_(scale.to(target.device, non_blocking=True))


def _part(slots: torch.Tensor, region: Region) -> torch.Tensor:
    return slots if region is ALL else slots[..., region[0], region[1]]


def _ways(targets: torch.Tensor, source: torch.Tensor) -> Iterator[Move | Detour]:
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
        yield Detour(targets, lying, None, back)
        return
    rows = pitched(_like(lying, torch.device("meta")), lying)
    if rows is not None:
        yield Detour(targets, lying, rows, back)
        return
    for at, part in enumerate(source):
        yield from _ways(targets[:, at], part)


def _like(source: torch.Tensor, device: torch.device) -> torch.Tensor:
    return torch.empty(source.shape, dtype=source.dtype, device=device)


def _copy(target: torch.Tensor, source: torch.Tensor, rows: Pitched | None) -> None:
    if rows is None:
        target.copy_(source, non_blocking=True)
    else:
        copy_rows(target, source, rows)
