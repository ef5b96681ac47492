"""What the `device` loader keeps on the host between an eviction and a rebuild, within a budget."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lorafleet_vllm.offload import total_bytes

if TYPE_CHECKING:
    import torch


@dataclass
class HostEntry:
    """One offloaded adapter: vLLM's packed, already scaled weights by wrapper name.

    `source` holds the tensors that the adapter was made of, for one that is in no arena.
    """

    rank: int
    loras: dict[str, Any]
    tensors: list[torch.Tensor]
    source: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Host bytes, each shared storage counted once."""
        return total_bytes([*self.tensors, *self.source.values()])


class HostStore:
    """Offloaded adapters by lora_int_id; the least recently used go first when it is full.

    An entry with a `source` is the only copy of its adapter and goes only by `drop`.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._entries: OrderedDict[int, HostEntry] = OrderedDict()

    def put(self, lora_int_id: int, entry: HostEntry) -> bool:
        """Keep `entry` in place of an older one of its id; False if it does not fit the budget."""
        self._entries.pop(lora_int_id, None)
        while self.nbytes + entry.nbytes > self.budget:
            oldest = next((key for key, old in self._entries.items() if not old.source), None)
            if oldest is None:
                return False
            del self._entries[oldest]
        self._entries[lora_int_id] = entry
        return True

    def get(self, lora_int_id: int) -> HostEntry | None:
        """Return the adapter's entry and count it as used."""
        entry = self._entries.get(lora_int_id)
        if entry is not None:
            self._entries.move_to_end(lora_int_id)
        return entry

    def drop(self, lora_int_id: int) -> None:
        """Forget an adapter that was unloaded."""
        self._entries.pop(lora_int_id, None)

    def tensors(self) -> list[torch.Tensor]:
        """Return every tensor that is kept."""
        return [
            tensor
            for entry in self._entries.values()
            for tensor in (*entry.tensors, *entry.source.values())
        ]

    def __contains__(self, lora_int_id: int) -> bool:
        return lora_int_id in self._entries

    @property
    def nbytes(self) -> int:
        """Host bytes of all entries."""
        return sum(entry.nbytes for entry in self._entries.values())
