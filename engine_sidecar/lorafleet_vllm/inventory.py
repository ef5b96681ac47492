"""What one worker holds, and in which memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lorafleet_vllm.offload import pinned_bytes, total_bytes
from lorafleet_vllm.slot_plan import slot_tensors
from lorafleet_vllm.tensor_tree import model_tensors

if TYPE_CHECKING:
    from lorafleet_vllm.residency import Residency


def report(residency: Residency) -> dict[str, Any]:
    """Return the residency and memory of a worker, as /v1/state tells them."""
    manager = residency.manager
    offloaded = [
        tensor
        for lora_int_id, known in residency.known.items()
        if known.model is None and lora_int_id in manager._registered_adapters
        for tensor in model_tensors(manager._registered_adapters.cache[lora_int_id])
    ]
    return {
        **residency.stats.to_dict(residency.device),
        "gpu": [lora_id for lora_id in manager.lora_index_to_id if lora_id is not None],
        "host": list(manager._registered_adapters.order),
        "pinned": sorted(manager._registered_adapters.pinned_items),
        "slot_bytes": total_bytes(
            tensor for layer in manager.modules.values() for tensor in slot_tensors(layer)
        ),
        "registered_host_bytes": residency.arena.registered_bytes,
        "pinned_host_bytes": pinned_bytes([*offloaded, *residency.store.tensors()]),
    }
