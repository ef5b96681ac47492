"""LoRARequests of ours and of stock, and a load for one step into a soiled slot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slot_probe import snapshot, soil

if TYPE_CHECKING:
    from pathlib import Path

    import torch


def ours(volume: Path, lora_int_id: int, digest: str, loader: str = "direct") -> Any:
    """Return the request that the control socket would make for a staged revision."""
    from vllm.lora.request import LoRARequest

    path = volume / "revisions" / digest.removeprefix("sha256:") / loader
    return LoRARequest(f"t/x{lora_int_id}@{digest[7:19]}", lora_int_id, str(path))


def stock(lora_int_id: int, adapter: Path) -> Any:
    """Return a request for an adapter on disk, as vLLM's own API makes it."""
    from vllm.lora.request import LoRARequest

    return LoRARequest(f"stock{lora_int_id}", lora_int_id, str(adapter))


def stock_is_right(options: dict[str, Any], *, experts: bool = False) -> bool:
    """Whether this vLLM loads an adapter of these options right from disk.

    Before it had `get_rank_and_scaling` (0.26 to 0.29 at least) it ignored alpha_pattern everywhere,
    and the root of the rank for experts.
    """
    from vllm.lora.peft_helper import PEFTHelper

    ignored = {"alpha_pattern"} | ({"use_rslora"} if experts else set())
    return hasattr(PEFTHelper, "get_rank_and_scaling") or not ignored & options.keys()


def load_for_step(lora: Any, request: Any) -> dict[str, torch.Tensor]:
    """Activate `request` alone, all slots soiled before; returns what its slot then holds.

    `lora` is a WorkerLoRAManager.
    """
    manager = lora._adapter_manager
    manager.deactivate_adapter(request.lora_int_id)
    for index in range(manager.lora_slots):
        soil(manager, index)
    lora.set_active_adapters({request}, None)
    return snapshot(manager, manager.lora_index_to_id.index(request.lora_int_id))
