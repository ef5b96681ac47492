"""Filling one GPU slot from arena views: plain copies, no staging, no host synchronisation.

vLLM's own `set_lora` zeroes whole buffers, copies, and writes Python scalars to GPU tensors,
which makes the host wait for the device twice in each MoE layer. Here a slot is a list of copies
that were planned when the adapter was loaded; only what no copy covers is zeroed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from lorafleet_vllm.copies import Copies
from lorafleet_vllm.crate import SMALL_BYTES
from lorafleet_vllm.writing import Blank, Writing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import torch

    from lorafleet_vllm.pieces import Fill

GROUP_BYTES = 16 << 20
"""Of small tensors that travel together."""


@dataclass(frozen=True)
class LayerFill:
    """What is written at once: the fills of one layer, then its experts' flags.

    The flags are int tensors [max_loras + 1], set to 1 (`enabled`) or 0 (`disabled`).
    """

    fills: tuple[Fill, ...]
    enabled: tuple[torch.Tensor, ...] = ()
    disabled: tuple[torch.Tensor, ...] = ()

    @cached_property
    def copies(self) -> Copies:
        """The calls that carry it out, found once."""
        return Copies(self.fills)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each piece's source."""
        return tuple(piece.source.nbytes for fill in self.fills for piece in fill.pieces)

    @property
    def nbytes(self) -> int:
        """Bytes that the copies read from the host."""
        return sum(self.sizes)


def grouped(layers: Iterable[LayerFill], limit: int = GROUP_BYTES) -> Iterator[LayerFill]:
    """Yield `layers` in order, ready to be written, neighbours together.

    A layer with large tensors ends its group. Small ones, which travel together, take at most
    `limit` bytes of a group.
    """
    group: list[LayerFill] = []
    together = 0
    for layer in layers:
        small = sum(size for size in layer.sizes if size <= SMALL_BYTES)
        if group and together + small > limit:
            yield _merged(group)
            group, together = [], 0
        group.append(layer)
        together += small
        if small < layer.nbytes:
            yield _merged(group)
            group, together = [], 0
    if group:
        yield _merged(group)


def _merged(group: list[LayerFill]) -> LayerFill:
    merged = LayerFill(
        tuple(fill for layer in group for fill in layer.fills),
        tuple(flags for layer in group for flags in layer.enabled),
        tuple(flags for layer in group for flags in layer.disabled),
    )
    assert merged.copies  # found now, rather than in the first step that needs them
    return merged


class SlotPlan:
    """Everything that makes one adapter active, layer by layer, in the order of writing.

    A layer is planned when it is first asked for: the first ones cross the bus while the others are
    still planned.
    """

    def __init__(self, layers: Iterable[LayerFill]) -> None:
        self._coming = iter(layers)
        self._planned: list[LayerFill] = []

    def __iter__(self) -> Iterator[LayerFill]:
        at = 0
        while at < len(self._planned) or self._plan_one():
            yield self._planned[at]
            at += 1

    def _plan_one(self) -> bool:
        layer = next(self._coming, None)
        if layer is not None:
            self._planned.append(layer)
        return layer is not None

    def parts(self) -> list[LayerFill]:
        """Give up what is planned, to be freed by the caller: all at once takes milliseconds."""
        self._coming = iter(())
        planned, self._planned = self._planned, []
        return planned

    @property
    def layers(self) -> tuple[LayerFill, ...]:
        """All layers, planned now."""
        return tuple(self)

    @property
    def nbytes(self) -> int:
        """Bytes that the copies read from the host."""
        return sum(layer.nbytes for layer in self)


def write_plan(plan: SlotPlan, index: int) -> None:
    """Write all of `plan` into slot `index`, on the current stream."""
    slot = Writing(index, Blank())
    for layer in plan:
        write_layer(layer, slot)


def write_layer(layer: LayerFill, slot: Writing) -> None:
    """Write one layer's share into a slot: only enqueued, on the current CUDA stream.

    What is blank there already is not zeroed again. It never waits for the device. Its temporary
    device memory is at most what the layer's sources take, and free again when the device is done.
    """
    layer.copies.enqueue(slot)
    index, blank = slot.index, slot.blank
    blank.take(layer.enabled, index)
    for flags in layer.enabled:
        flags[index : index + 1].fill_(1)
    for flags in blank.lacking(layer.disabled, index):
        flags[index : index + 1].fill_(0)
