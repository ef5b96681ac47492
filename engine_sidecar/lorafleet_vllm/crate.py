"""Small tensors that travel together, because a launch takes as long as 200 KiB on the bus."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from lorafleet_vllm.batch import multiply

if TYPE_CHECKING:
    from collections.abc import Sequence

SMALL_BYTES = 1 << 20


class Small(NamedTuple):
    """A contiguous source, its place `targets[index]` of the same shape, and its scaling."""

    targets: torch.Tensor
    source: torch.Tensor
    scale: float


def is_small(targets: torch.Tensor, source: torch.Tensor) -> bool:
    """Whether a source may travel in a crate."""
    if source.dtype != targets.dtype or source.nbytes > SMALL_BYTES:
        return False
    return bool(source.is_contiguous())


class Crate:
    """Copies neighbours in the host's memory in one piece, and lets the device take them apart.

    Its device memory has the sources' size and is free again when the device is done with it.
    """

    def __init__(self, items: Sequence[Small]) -> None:
        items = sorted(items, key=lambda item: item.source.data_ptr())
        self._sizes = [item.source.numel() for item in items]
        self.runs = _runs([item.source for item in items])
        self._scaled = [at for at, item in enumerate(items) if item.scale != 1.0]
        self._scales = [items[at].scale for at in self._scaled]
        dense = {at for at, item in enumerate(items) if item.targets[0].is_contiguous()}
        self._dense = [
            (at, item.targets.view(item.targets.shape[0], -1))
            for at, item in enumerate(items)
            if at in dense
        ]
        self._strided = [(at, item.targets) for at, item in enumerate(items) if at not in dense]
        self._like = items[0].targets

    def load(self) -> torch.Tensor:
        """Copy everything to the device, on the current stream; returns the temporary."""
        memory = self._like.new_empty(sum(self._sizes))
        for own, run in zip(memory.split([r.numel() for r in self.runs]), self.runs, strict=True):
            own.copy_(run, non_blocking=True)
        return memory

    def unpack(self, memory: torch.Tensor, index: int) -> None:
        """Fill slot `index` from the temporary, on the current stream."""
        parts = memory.split(self._sizes)
        if self._scaled:
            multiply([parts[at] for at in self._scaled], self._scales)
        if self._dense:  # apart: with one strided tensor in the list torch loops over all of it
            torch._foreach_copy_(
                [targets[index] for _, targets in self._dense],
                [parts[at] for at, _ in self._dense],
            )
        for at, targets in self._strided:
            target = targets[index]
            target.copy_(parts[at].view(target.shape))


def _runs(sources: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return flat views of neighbours in memory, in their order."""
    runs: list[torch.Tensor] = []
    for source in sources:
        flat = source.view(-1)
        last = runs[-1] if runs else flat
        if runs and _end(last) == (flat.untyped_storage().data_ptr(), flat.storage_offset()):
            size = last.numel() + flat.numel()
            runs[-1] = last.as_strided((size,), (1,), last.storage_offset())
        else:
            runs.append(flat)
    return runs


def _end(run: torch.Tensor) -> tuple[int, int]:
    return run.untyped_storage().data_ptr(), run.storage_offset() + run.numel()
