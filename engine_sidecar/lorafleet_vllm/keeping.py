"""What a worker keeps ready of an adapter, beyond what its LRU says.

gpu       never dropped: a slot and a place in host memory of its own
host      a place in host memory of its own; slots are shared
onDemand  both are shared, and it is the first to go
""        both are shared, least recently used out first
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lorafleet.errors import EngineRejected

if TYPE_CHECKING:
    from collections.abc import Collection

GPU, HOST, ON_DEMAND, SHARED = "gpu", "host", "onDemand", ""
RESIDENCIES = (GPU, HOST, ON_DEMAND, SHARED)
OWN_PLACE = (GPU, HOST)


def keep(manager: Any, lora_int_id: int, residency: str) -> None:
    """Let `manager` (vLLM's LoRAModelManager) keep a resident adapter as `residency` says.

    With gpu it stays in its slot while another slot is left for others. Raises EngineRejected
    rather than let pins fill the host tier: a step that then needs another adapter would end the
    engine.
    """
    host, slots = manager._registered_adapters, manager._active_adapters
    if residency not in OWN_PLACE:
        host.pinned_items.discard(lora_int_id)
    elif lora_int_id not in host:
        raise EngineRejected(f"adapter {lora_int_id} is not resident and cannot be pinned")
    elif len(host.pinned_items | {lora_int_id}) >= manager.capacity:
        raise EngineRejected(
            f"{len(host.pinned_items)} of {manager.capacity} adapters (max_cpu_loras) are "
            "pinned; one place must stay for the others"
        )
    else:
        host.pin(lora_int_id)
    free = len(slots.pinned_items | {lora_int_id}) < manager.lora_slots
    if residency != GPU:
        slots.pinned_items.discard(lora_int_id)
    elif lora_int_id in slots and free:
        slots.pin(lora_int_id)


def let_go_first(manager: Any, first_out: Collection[int], used: Collection[int]) -> None:
    """Make `first_out` the least recently used of both tiers, but for those that are `used` now."""
    going = set(first_out) - set(used)
    if not going:
        return
    for tier in (manager._registered_adapters, manager._active_adapters):
        for lora_int_id in [each for each in tier.order if each not in going]:
            tier.touch(lora_int_id)
