"""Fills of slots in progress: a few layers at a time, on a stream of their own, beside the steps.

Enqueueing the copies of a large adapter takes the host milliseconds, and the copies take the bus a
tenth of a second: neither may stand between two decode steps of others. A fill is a list of layers
that goes on whenever somebody gives it time; a step that needs the slot at once finishes it.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from lorafleet_vllm.slots import write_layer
from lorafleet_vllm.writing import Blank, Writing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lorafleet_vllm.slots import LayerFill, SlotPlan

GENTLE_BYTES = 4 << 20
"""80 us on the bus. A step has a dozen small copies of its own, and each may have to wait for the one
that the copy engine is at; smaller pieces take more of the host's time than they save."""


@dataclass
class _Fill:
    """One slot's fill: the layers that are still to be enqueued, and the event behind the last."""

    index: int
    layers: Iterator[LayerFill]
    enqueued: bool = False
    event: torch.cuda.Event | None = None


class SlotFills:
    """The fills of one worker, by lora_int_id, the oldest first."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._fills: dict[int, _Fill] = {}
        self._blank = Blank()

    def start(self, lora_int_id: int, plan: SlotPlan, index: int) -> None:
        """Begin to write `plan` into slot `index`; whatever was on its way into it is dropped."""
        for other, fill in list(self._fills.items()):
            if fill.index == index:
                del self._fills[other]
        if self._stream is not None:
            # Steps that were launched before may still read what the slot held until now.
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
        self._fills[lora_int_id] = _Fill(index, iter(plan))

    def unfinished(self) -> list[int]:
        """Return the adapters of which layers are still to be enqueued, the oldest first."""
        return [lora_int_id for lora_int_id, fill in self._fills.items() if not fill.enqueued]

    def advance(self, lora_int_id: int, until: float, *, gently: bool = False) -> bool:
        """Enqueue layers, at least one, until time.perf_counter() passes `until`.

        `gently`: in copies so small that those of the steps beside it need not wait. Returns
        whether all layers are enqueued now.
        """
        fill = self._fills[lora_int_id]
        slot = Writing(fill.index, self._blank, GENTLE_BYTES if gently else None)
        with torch.cuda.stream(self._stream):
            for layer in fill.layers:
                write_layer(layer, slot)
                if time.perf_counter() >= until:
                    return False
            fill.enqueued = True
            if self._stream is not None:
                fill.event = torch.cuda.Event()
                fill.event.record(self._stream)
        return True

    def ready(self, lora_int_id: int) -> bool:
        """Whether the slot holds all of the adapter by now."""
        fill = self._fills.get(lora_int_id)
        if fill is None:
            return True
        if not fill.enqueued or (fill.event is not None and not fill.event.query()):
            return False
        del self._fills[lora_int_id]
        return True

    def need(self, lora_int_id: int) -> None:
        """Finish the adapter's fill; the device's current stream waits for it, the host does not."""
        fill = self._fills.get(lora_int_id)
        if fill is None:
            return
        if not fill.enqueued:
            self.advance(lora_int_id, math.inf)
        if fill.event is None or fill.event.query():
            del self._fills[lora_int_id]
        else:  # kept: the next one to need it may be on another stream
            torch.cuda.current_stream(self._device).wait_event(fill.event)

    def drop(self, lora_int_id: int) -> None:
        """Forget the adapter's fill; layers that were enqueued are still written."""
        self._fills.pop(lora_int_id, None)

    def give_way(self) -> None:
        """Let others write to slots: what they hold is not known any more.

        vLLM's stream waits for all writes so far.
        """
        self._blank.forget()
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)
