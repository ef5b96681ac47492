"""The fills of some layers as the few calls that carry them out, none of which waits.

A tensor gets into a slot by one copy where both sides are evenly spaced rows. Where the slot's rows
are too narrow for the copy engine, or in another order, its rows come as they lie to a temporary
and the device puts them in place. Small ones share a temporary.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import torch

from lorafleet_vllm.batch import Batch, multiply
from lorafleet_vllm.beside import beside, join
from lorafleet_vllm.copy2d import Pitched, copy, pitched
from lorafleet_vllm.crate import SMALL_BYTES, Crate, Small, kernel_pays
from lorafleet_vllm.pieces import ALL
from lorafleet_vllm.spot import Spot, spot_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lorafleet_vllm.pieces import Fill
    from lorafleet_vllm.writing import Writing

NARROW_BYTES = 128
"""Rows of a slot that are narrower are put in place by the device; others lose little on the bus."""


class Move(NamedTuple):
    """One copy into `spot`; `rows` is None where both sides are contiguous."""

    spot: Spot
    source: torch.Tensor
    rows: Pitched | None

    def enqueue(self, slot: Writing) -> None:
        """Fill the slot, on the current stream."""
        copy(self.spot.at(slot.index), self.source, self.rows, slot.largest_copy)


class Detour(NamedTuple):
    """One copy to a temporary, and from there into `spot`.

    `back` is the order in which the dimensions of `source` are the spot's.
    """

    spot: Spot
    source: torch.Tensor
    rows: Pitched | None
    back: tuple[int, ...]

    def load(self, largest_copy: int | None) -> tuple[torch.Tensor, ...]:
        """Copy to the device, on the current stream; returns the temporary."""
        memory = _like(self.source, self.spot.slots.device)
        copy(memory, self.source, self.rows, largest_copy)
        return (memory,)

    def unpack(self, loaded: tuple[torch.Tensor, ...], index: int) -> None:
        """Fill slot `index` from the temporary, on the current stream."""
        self.spot.at(index).copy_(loaded[0].permute(self.back))


class Copies:
    """What fills have to do: `enqueue` does it for one slot.

    `first` are copies whose values are still to be scaled, `rest` are the others; of the buffers
    `blank` get nothing but zeros.
    """

    def __init__(self, fills: Iterable[Fill]) -> None:
        self.zeros = Batch(torch._foreach_zero_)
        self.detours: list[Crate | Detour] = []
        self.first: list[Move] = []
        self.rest: list[Move] = []
        self.scaled = Batch(multiply)
        self.scaled_by_expert: list[tuple[Spot, torch.Tensor]] = []
        self.written: list[torch.Tensor] = []
        self.blank: list[torch.Tensor] = []
        small: defaultdict[torch.dtype, list[Small]] = defaultdict(list)
        rests: defaultdict[torch.dtype, list[Spot]] = defaultdict(list)
        for fill in fills:
            if not fill.pieces:
                self.blank.append(fill.slots)
                continue
            self.written.append(fill.slots)
            for region in fill.zeros:
                spot = spot_of(fill.slots, region)
                # What is ALL is zeroed first: pieces are written over it.
                if region is not ALL and math.prod(spot.shape) * 2 <= SMALL_BYTES:
                    rests[fill.slots.dtype].append(spot)
                else:
                    self._zero(spot)
            for piece in fill.pieces:
                source, scale = piece.source, piece.scale
                nbytes = source.nbytes
                if not nbytes:
                    continue  # a rank that holds no row of it
                spot = spot_of(fill.slots, piece.region)
                dtype = fill.slots.dtype
                moves = self.first
                if isinstance(scale, torch.Tensor):
                    self.scaled_by_expert.append((spot, scale))
                elif nbytes <= SMALL_BYTES and source.is_contiguous() and source.dtype == dtype:
                    small[dtype].append(Small(spot, source, scale))
                    continue
                elif scale == 1.0:
                    moves = self.rest
                else:
                    self.scaled.add(spot, scale)
                for way in _ways(spot, source):
                    if isinstance(way, Move):
                        moves.append(way)
                    else:
                        self.detours.append(way)
        for dtype, items in small.items():
            zeros = rests.pop(dtype) if kernel_pays(items, rests[dtype]) else []
            self.detours.append(Crate(items, zeros))
        for spot in itertools.chain.from_iterable(rests.values()):
            self._zero(spot)

    def _zero(self, spot: Spot) -> None:
        # Of a small slot all, together with others: a strided rest is a launch of its own.
        small = spot.slots.nbytes <= spot.slots.shape[0] * SMALL_BYTES
        if 0 not in spot.shape:
            self.zeros.add(spot_of(spot.slots, ALL) if small else spot)

    def enqueue(self, slot: Writing) -> None:
        """Fill the slot, on the current stream.

        What the device has to do with what arrives is done while `rest` arrives.
        """
        index = slot.index
        slot.blank.take(self.written, index)
        if lacking := slot.blank.lacking(self.blank, index):
            torch._foreach_zero_([slots[index] for slots in lacking])
        self.zeros.enqueue(index)
        arrived = [(detour, detour.load(slot.largest_copy)) for detour in self.detours]
        for move in self.first:
            move.enqueue(slot)
        if not self.rest:
            self._place(arrived, index)
            return
        device = self.rest[0].spot.slots.device
        with beside(device):
            self._place(arrived, index)
        for move in self.rest:
            move.enqueue(slot)
        join(device)

    def _place(
        self, arrived: list[tuple[Crate | Detour, tuple[torch.Tensor, ...]]], index: int
    ) -> None:
        for detour, loaded in arrived:
            detour.unpack(loaded, index)
        self.scaled.enqueue(index)
        for spot, scale in self.scaled_by_expert:
            target = spot.at(index)
            target.mul_(scale.to(target.device, non_blocking=True))


def _ways(spot: Spot, source: torch.Tensor) -> Iterator[Move | Detour]:
    """Yield the copies of `source`: one, unless its rows are not evenly spaced."""
    if source.dtype == spot.slots.dtype:
        if spot.dense and source.is_contiguous():
            yield Move(spot, source, None)
            return
        rows = pitched(spot.at(0), source)
        if rows is not None and (rows.width >= NARROW_BYTES or spot.dense):
            yield Move(spot, source, rows)
            return
    order = sorted(range(source.dim()), key=source.stride, reverse=True)
    lying = source.permute(order)
    back = tuple(order.index(dimension) for dimension in range(source.dim()))
    if lying.is_contiguous():
        yield Detour(spot, lying, None, back)
        return
    rows = pitched(_like(lying, torch.device("meta")), lying)
    if rows is not None:
        yield Detour(spot, lying, rows, back)
        return
    for at, part in enumerate(source):
        yield from _ways(spot.part(at), part)


def _like(source: torch.Tensor, device: torch.device) -> torch.Tensor:
    return torch.empty(source.shape, dtype=source.dtype, device=device)
