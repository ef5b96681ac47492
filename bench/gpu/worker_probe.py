"""What parallel.py asks each rank beside the plugin: a class that vLLM mixes into its workers.

    --worker-extension-cls worker_probe.WorkerProbe

Reads vLLM's own buffers, torch and /proc; of the plugin only where the arena is mapped.
"""

from __future__ import annotations

import os
from typing import Any

import accelerator
import host_memory
import torch
from slot_probe import stacked


class WorkerProbe:
    """Methods of every worker, by name through collective_rpc; answers are plain JSON."""

    model_runner: Any
    rank: int

    def bench_soil(self) -> dict[str, Any]:
        """Fill the free slots with what no adapter holds."""
        manager = _manager(self)
        for index, owner in enumerate(manager.lora_index_to_id):
            for _, tensor in _buffers(manager) if owner is None else ():
                tensor[index].fill_(7)
        return {}

    def bench_slots(self) -> dict[str, Any]:
        """Return each slot's adapter, and a sum of each adapter's bits in its slot."""
        manager = _manager(self)
        sums = {
            str(owner): [int(_sum(tensor[index])) for _, tensor in _buffers(manager)]
            for index, owner in enumerate(manager.lora_index_to_id)
            if owner is not None
        }
        return {"slots": list(manager.lora_index_to_id), "sums": sums}

    def bench_compare(self, left: int, right: int) -> dict[str, Any]:
        """Return how many buffers there are, and those whose bits differ between two adapters."""
        manager = _manager(self)
        one, other = (manager.lora_index_to_id.index(each) for each in (left, right))
        names = [
            name
            for name, tensor in _buffers(manager)
            if not torch.equal(_bits(tensor[one]), _bits(tensor[other]))
        ]
        return {"buffers": sum(1 for _ in _buffers(manager)), "differing": names}

    def bench_copy(self, offset: int) -> dict[str, Any]:
        """Time plain copies of as many bytes as this rank's slot has, from the arena at `offset`."""
        arena = _manager(self).lorafleet.arena.current()
        nbytes = sum(tensor[0].nbytes for _, tensor in _buffers(_manager(self)))
        nbytes = min(nbytes, arena.size - offset)
        source = arena.view(offset, (nbytes,), torch.uint8)
        return {
            "bytes": nbytes,
            "seconds": accelerator.copy_seconds(source, accelerator.room_for(source)),
        }

    def bench_memory(self) -> dict[str, Any]:
        """Return this rank's memory as /proc and torch tell it."""
        residency = _manager(self).lorafleet
        volume = residency.volume.root
        maps = host_memory.of_process()
        ours = [each for name, each in maps.items() if name.startswith(str(volume))]
        cuda = accelerator.CUDA
        return {
            "rank": self.rank,
            "pid": os.getpid(),
            "arena_rss": sum(each["Rss"] for each in ours),
            "arena_pss": sum(each["Pss"] for each in ours),
            "private_rss": host_memory.private(maps, but=volume),
            "status": host_memory.status(),
            "slot_bytes": sum(tensor.nbytes for _, tensor in _buffers(_manager(self))),
            "torch_allocated": torch.cuda.memory_allocated() if cuda else 0,
            "torch_reserved": torch.cuda.memory_reserved() if cuda else 0,
        }

    def bench_break(self, rank: int, what: str) -> dict[str, Any]:
        """Let new loads fail on one rank, at the arena or in the middle of a fill; -1: no more."""
        residency = _manager(self).lorafleet
        for owner, name in ((residency.arena, "current"), (residency.fills, "advance")):
            assert hasattr(type(owner), name), name
            owner.__dict__.pop(name, None)
            if self.rank == rank and name == what:
                setattr(owner, name, _broken)
        return {}


def _broken(*_: Any, **__: Any) -> None:
    from lorafleet.errors import InvalidAdapter

    raise InvalidAdapter("this rank was broken on purpose")


def _manager(worker: Any) -> Any:
    return worker.model_runner.lora_manager._adapter_manager


def _buffers(manager: Any) -> Any:
    for wrapper, layer in manager.modules.items():
        for name, tensor in stacked(layer).items():
            yield f"{wrapper}/{name}", tensor


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int16) if tensor.element_size() == 2 else tensor


def _sum(tensor: torch.Tensor) -> torch.Tensor:
    return _bits(tensor).sum(dtype=torch.int64)
