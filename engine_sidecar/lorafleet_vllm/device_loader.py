"""The `device` loader: build on the GPU with vLLM's own code, then move everything to the host.

It is for tensors that are born on the GPU, and a second opinion on `direct`: what it makes goes
through vLLM's packing and `set_lora`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from lorafleet.errors import InvalidAdapter
from lorafleet.profile import ModuleKind
from vllm.lora.layers import FusedMoE3DWithLoRA
from vllm.lora.lora_model import LoRAModel
from vllm.lora.peft_helper import PEFTHelper

from lorafleet_vllm.direct import check_shapes, find_target, pair_of
from lorafleet_vllm.targets import rename_mapper

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lorafleet_vllm.arena_map import ArenaMap
    from lorafleet_vllm.revision import Revision
    from lorafleet_vllm.targets import Target


@dataclass(frozen=True)
class DeviceModule:
    """One module's pair on the device: experts side by side, B not yet scaled."""

    name: str
    kind: ModuleKind
    a: torch.Tensor
    b: torch.Tensor
    scaling: tuple[float, ...]


def from_arena(
    revision: Revision, arena: ArenaMap, targets: dict[str, Target], device: torch.device
) -> list[DeviceModule]:
    """Return private device copies of a staged revision. Raises InvalidAdapter if it does not fit."""
    staged = []
    for tensors in revision.modules:
        check_shapes(tensors, find_target(tensors, targets).module)
        pair = pair_of(tensors, revision, arena)
        a, b = (
            torch.empty_like(t, device=device).copy_(t, non_blocking=True) for t in (pair.a, pair.b)
        )
        staged.append(DeviceModule(tensors.name, tensors.kind, a, b, tensors.scaling))
    return staged


def build(
    lora_int_id: int, staged: Sequence[DeviceModule], manager: Any, device: torch.device
) -> LoRAModel:
    """Return a LoRAModel on `device` that vLLM's manager can merge. `staged` is not changed.

    The scaling is applied here, after the cast, into tensors of the model's own: whoever made the
    staged tensors may keep using them.
    """
    if any(isinstance(layer, FusedMoE3DWithLoRA) for layer in manager.modules.values()):
        raise InvalidAdapter("the device loader cannot fill fused gate_up experts; use direct")
    if getattr(manager, "_enable_moe_shared_loras", False):
        raise InvalidAdapter("the device loader does not support enable_moe_shared_loras")
    dtype = manager.lora_config.lora_dtype
    tensors: dict[str, torch.Tensor] = {}
    for module in staged:
        a, b = module.a.to(device, dtype), _scaled(module.b.to(device, dtype), module.scaling)
        tensors.update(_peft_tensors(module, a, b))
    # alpha = r: the factors are scaled already, so vLLM must multiply by 1.
    rank = max(module.a.shape[-2] for module in staged)
    helper = PEFTHelper(r=rank, lora_alpha=rank, target_modules=[])
    return LoRAModel.from_lora_tensors(
        lora_int_id,
        tensors,
        helper,
        device=str(device),
        dtype=dtype,
        model_vocab_size=manager.vocab_size,
        weights_mapper=rename_mapper(manager.model),
    )


def _scaled(b: torch.Tensor, scaling: tuple[float, ...]) -> torch.Tensor:
    if len(set(scaling)) == 1:
        return b if scaling[0] == 1.0 else b * scaling[0]
    factors = torch.tensor(scaling, dtype=torch.float32, device=b.device).view(-1, 1, 1)
    return (b * factors).to(b.dtype)


def _peft_tensors(
    module: DeviceModule, a: torch.Tensor, b: torch.Tensor
) -> dict[str, torch.Tensor]:
    prefix = "base_model.model."
    if module.kind is ModuleKind.EMBEDDING:
        name = prefix + module.name
        return {f"{name}.lora_embedding_A": a, f"{name}.lora_embedding_B": b}
    if module.kind is ModuleKind.LINEAR:
        name = prefix + module.name
        return {f"{name}.lora_A.weight": a, f"{name}.lora_B.weight": b}
    experts, _, projection = module.name.rpartition(".")
    found = {}
    for index, (expert_a, expert_b) in enumerate(zip(a, b, strict=True)):
        name = f"{prefix}{experts}.{index}.{projection}"
        found[f"{name}.lora_A.weight"] = expert_a
        found[f"{name}.lora_B.weight"] = expert_b
    return found
