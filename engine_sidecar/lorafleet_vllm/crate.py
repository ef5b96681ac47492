"""Small tensors that travel together, because a launch takes as long as 200 KiB on the bus."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from lorafleet_vllm.batch import multiply
from lorafleet_vllm.copy2d import copy

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lorafleet_vllm.spot import Spot

SMALL_BYTES = 1 << 20
_FEW = 32
"""So many tensors and rests are placed by torch: a table for the kernel takes longer to make."""


class Small(NamedTuple):
    """A contiguous source, its place in the slots, and its scaling."""

    spot: Spot
    source: torch.Tensor
    scale: float


def kernel_pays(items: Sequence[Small], zeros: Sequence[Spot]) -> bool:
    """Whether one launch takes such a crate apart, and zeroes spots beside it, faster than torch."""
    slots = items[0].spot.slots
    return bool(slots.is_cuda and slots.element_size() == 2 and len(items) + len(zeros) > _FEW)


class Crate:
    """Copies neighbours in the host's memory in one piece, and lets the device take them apart.

    `zeros` are spots that it zeroes on the way, only where `kernel_pays`. Its device memory has the
    sources' size and is free again when the device is done with it.
    """

    def __init__(self, items: Sequence[Small], zeros: Sequence[Spot] = ()) -> None:
        items = sorted(items, key=lambda item: item.source.data_ptr())
        self._like = items[0].spot.slots
        self._sizes = [item.source.numel() for item in items]
        self.runs = list(_runs([item.source for item in items]))
        self._table = None
        if kernel_pays(items, zeros):
            from lorafleet_vllm.crate_kernel import Table  # needs a driver

            self._table = Table(items, zeros)
            return
        self._scaled = [at for at, item in enumerate(items) if item.scale != 1.0]
        self._scales = [items[at].scale for at in self._scaled]
        self._dense = [(at, item.spot) for at, item in enumerate(items) if item.spot.dense]
        self._strided = [(at, item.spot) for at, item in enumerate(items) if not item.spot.dense]

    def load(self, largest_copy: int | None) -> tuple[torch.Tensor, ...]:
        """Copy everything to the device, on the current stream; returns the temporaries."""
        memory = self._like.new_empty(sum(self._sizes))
        for own, run in zip(memory.split([r.numel() for r in self.runs]), self.runs, strict=True):
            copy(own, run, None, largest_copy)
        if self._table is None:
            return (memory,)
        return memory, self._table.load(memory.device)

    def unpack(self, loaded: tuple[torch.Tensor, ...], index: int) -> None:
        """Fill slot `index` from the temporaries, on the current stream."""
        if self._table is not None:
            from lorafleet_vllm import crate_kernel

            memory, table = loaded
            crate_kernel.unpack(memory, table, index)
            return
        parts = loaded[0].split(self._sizes)
        if self._scaled:
            multiply([parts[at] for at in self._scaled], self._scales)
        # Apart: with one strided tensor in the list torch launches a kernel for each of all.
        if self._dense:
            torch._foreach_copy_(
                [spot.flat(index) for _, spot in self._dense],
                [parts[at] for at, _ in self._dense],
            )
        if self._strided:
            torch._foreach_copy_(
                [spot.at(index) for _, spot in self._strided],
                [parts[at].view(spot.shape) for at, spot in self._strided],
            )


def _runs(sources: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield flat views of neighbours in memory, in their order."""
    first = sources[0]
    begin = end = first.data_ptr()
    for source in sources:
        here = source.data_ptr()
        if here != end or here + source.nbytes > _end_of_storage(first):
            yield _flat(first, end - begin)
            first, begin = source, here
        end = here + source.nbytes
    yield _flat(first, end - begin)


def _end_of_storage(view: torch.Tensor) -> int:
    storage = view.untyped_storage()
    return int(storage.data_ptr() + storage.nbytes())


def _flat(first: torch.Tensor, nbytes: int) -> torch.Tensor:
    """Return the `nbytes` from the first element of `first` on as one row."""
    return first.as_strided((nbytes // first.element_size(),), (1,), first.storage_offset())
