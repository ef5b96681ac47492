"""Filling one GPU slot from arena views: plain copies, no staging, no host synchronisation.

vLLM's own `set_lora` zeroes whole buffers, copies, and writes Python scalars to GPU tensors,
which makes the host wait for the device twice in each MoE layer. Here a slot is a list of copies
that were planned when the adapter was loaded; only what no copy covers is zeroed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

Region = tuple[slice, slice]  # rows and columns of the last two dimensions
ALL: Region = (slice(None), slice(None))


@dataclass(frozen=True)
class Piece:
    """One tensor's place in a slot: `source` has the shape of `region`.

    `scale` multiplies the copied values in place: a number, or a float32 tensor [experts, 1, 1].
    """

    region: Region
    source: torch.Tensor
    scale: float | torch.Tensor = 1.0


@dataclass(frozen=True)
class Fill:
    """What one stacked buffer of a layer gets: `slots[index]` is the adapter's share of it.

    `slots` is [max_loras, experts or 1, rows, cols], or [max_loras, rows, cols] (embedding A).
    """

    slots: torch.Tensor
    pieces: tuple[Piece, ...] = ()
    zeros: tuple[Region, ...] = (ALL,)


@dataclass(frozen=True)
class LayerFill:
    """What is written at once: the fills of one layer, then its experts' flags.

    The flags are int tensors [max_loras + 1], set to 1 (`enabled`) or 0 (`disabled`).
    """

    fills: tuple[Fill, ...]
    enabled: tuple[torch.Tensor, ...] = ()
    disabled: tuple[torch.Tensor, ...] = ()

    @cached_property
    def nbytes(self) -> int:
        """Bytes that the copies read from the host."""
        return sum(piece.source.nbytes for fill in self.fills for piece in fill.pieces)


@dataclass(frozen=True)
class SlotPlan:
    """Everything that makes one adapter active, layer by layer, in the order of writing."""

    layers: tuple[LayerFill, ...]

    @property
    def nbytes(self) -> int:
        """Bytes that the copies read from the host."""
        return sum(layer.nbytes for layer in self.layers)


class SlotWriter:
    """Writes plans into slots; on CUDA on a stream of its own, beside the decode steps."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._last: torch.cuda.Event | None = None

    def write(self, plan: SlotPlan, index: int) -> torch.cuda.Event | None:
        """Write `plan` into slot `index`; the event is due before the slot may be read."""
        if self._stream is None:
            write_plan(plan, index)
            return None
        # Steps that were launched before may still read what the slot held until now.
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            write_plan(plan, index)
            self._last = torch.cuda.Event()
            self._last.record(self._stream)
        return self._last

    def join(self) -> None:
        """Make vLLM's stream wait for all writes so far, before it writes to slots itself."""
        if self._last is not None:
            torch.cuda.current_stream(self._device).wait_event(self._last)
            self._last = None


def write_plan(plan: SlotPlan, index: int) -> None:
    """Write all of `plan` into slot `index`, on the current stream."""
    for layer in plan.layers:
        write_layer(layer, index)


def write_layer(layer: LayerFill, index: int) -> None:
    """Write one layer's share into slot `index`: only enqueued, on the current CUDA stream.

    It never waits for the device, and its temporary device memory is at most the layer's bytes.
    """
    for fill in layer.fills:
        slot = fill.slots[index]
        for rows, cols in fill.zeros:
            slot[..., rows, cols].zero_()
        for piece in fill.pieces:
            _copy(slot[..., piece.region[0], piece.region[1]], piece)
    for flags in layer.enabled:
        flags[index : index + 1].fill_(1)
    for flags in layer.disabled:
        flags[index : index + 1].fill_(0)


def _copy(target: torch.Tensor, piece: Piece) -> None:
    source = piece.source
    if target.is_cuda and not source.is_contiguous():
        # A transposed or sliced view: bring its rows over as they lie, reorder on the device.
        source = _on_device(source, target.device)
    target.copy_(source, non_blocking=True)
    scale = piece.scale
    if isinstance(scale, torch.Tensor):
        target.mul_(scale.to(target.device, non_blocking=True))
    elif scale != 1.0:
        target.mul_(scale)


def _on_device(source: torch.Tensor, device: torch.device) -> torch.Tensor:
    flipped = source.mT
    if flipped.is_contiguous():
        return flipped.to(device, non_blocking=True).mT
    return source.contiguous().to(device)
