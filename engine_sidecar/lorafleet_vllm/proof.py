"""A worker's evidence of what its slots hold: the fingerprints of every part of every module.

Called between two steps with a few layers at a time, so that no step waits for long. An adapter
without a slot is proved with its layer's share written to a scratch of that one layer, by the same
code that writes slots.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from lorafleet.errors import EngineRejected
from lorafleet.fingerprint import to_text
from lorafleet.profile import ModuleKind
from vllm.lora.layers import FusedMoEWithLoRA
from vllm.lora.layers.base_linear import BaseLinearLayerWithLoRA

from lorafleet_vllm import direct
from lorafleet_vllm.fingerprints import part_fingerprint
from lorafleet_vllm.slot_plan import slot_tensors
from lorafleet_vllm.slot_reader import (
    Fused,
    expert_parts,
    linear_parts,
    readable,
    shard_of,
    whole_parts,
)
from lorafleet_vllm.slots import LayerFill, SlotPlan, write_plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lorafleet_vllm.residency import Known, Residency
    from lorafleet_vllm.slot_reader import Part
    from lorafleet_vllm.targets import Target

_STACKS = (
    "lora_a_stacked",
    "lora_b_stacked",
    "w13_lora_a_stacked",
    "w13_lora_b_stacked",
    "w2_lora_a_stacked",
    "w2_lora_b_stacked",
)


@dataclass(frozen=True)
class _Module:
    name: str
    kind: ModuleKind
    shard: Any  # of a packed linear layer; None: all of the layer
    part: int  # its position in the layer


@torch.inference_mode()  # type: ignore[untyped-decorator]  # torch's are
def evidence(residency: Residency, lora_int_id: int, start: int, stop: int) -> dict[str, Any]:
    """Return what layers [start, stop) hold of an adapter: see docs/plugin.md, "Proof".

    `{"layers": how many there are, "parts": {module: [[side, experts, rows, cols, fingerprint]]},
    "enabled": {module: bool}}`, where experts, rows and cols are the [first, end) of the canonical
    tensor that the part stands for. Raises EngineRejected for an adapter that is not resident.
    """
    known = residency.known.get(lora_int_id)
    if known is None or known.revision is None:
        raise EngineRejected(f"adapter {lora_int_id} is no staged revision that this worker holds")
    with residency.reading_slot(lora_int_id):
        return _evidence(residency, lora_int_id, known, start, stop)


def _evidence(
    residency: Residency, lora_int_id: int, known: Known, start: int, stop: int
) -> dict[str, Any]:
    assert known.revision is not None
    modules = list(_modules(residency).items())
    found: list[tuple[str, Part, torch.Tensor]] = []
    enabled: dict[str, torch.Tensor] = {}
    ranks = {module.name: module.rank for module in known.revision.modules}
    for wrapper, members in modules[start:stop]:
        layer, index = _layer(residency, lora_int_id, known, wrapper)
        for module in members:
            for part in _parts(layer, index, module, known):
                rows = residency.targets[module.name].module.out_features
                if part.side == "a":
                    rows = ranks.get(module.name, part.values.shape[1])
                found.append((module.name, part, part_fingerprint(part.values, part.first, rows)))
            if isinstance(layer, FusedMoEWithLoRA):
                enabled[module.name] = layer.adapter_enabled[index]
    numbers = torch.stack([number for _, _, number in found]).tolist() if found else []
    parts: dict[str, list[Any]] = {}
    for (name, part, _), number in zip(found, numbers, strict=True):
        spans = [
            [first, first + size] for first, size in zip(part.first, part.values.shape, strict=True)
        ]
        parts.setdefault(name, []).append([part.side, *spans, to_text(number)])
    flags = {name: bool(flag) for name, flag in enabled.items()}
    return {"layers": len(modules), "parts": parts, "enabled": flags}


def _modules(residency: Residency) -> dict[str, list[_Module]]:
    """Return the readable layers and the modules in them, as vLLM loads the base model's weights."""
    manager = residency.manager
    found: dict[str, list[_Module]] = {
        wrapper: [] for wrapper, layer in manager.modules.items() if readable(layer)
    }
    for name, target in residency.targets.items():
        wrapper = _wrapper(manager, name, target)
        unpacked = wrapper.rpartition(".")[2] == name.rpartition(".")[2]
        shard = None if unpacked else shard_of(manager.model, name)
        found[wrapper].append(_Module(name, target.module.kind, shard, target.part))
    return found


def _wrapper(manager: Any, name: str, target: Target) -> str:
    """Return the layer that vLLM loads the base weight of `name` into."""
    mapper = getattr(manager.model, "hf_to_vllm_mapper", None)
    if mapper is not None and target.module.kind is not ModuleKind.EXPERTS:
        mapped = (mapper._map_name(f"{name}.weight") or "").removesuffix(".weight")
        if mapped in manager.modules:
            return str(mapped)
    return target.wrapper


def _parts(layer: Any, index: int, module: _Module, known: Known) -> Iterator[Part]:
    if isinstance(layer, FusedMoEWithLoRA):
        experts, _, projection = module.name.rpartition(".")
        return expert_parts(layer, index, projection, _fused(known, experts))
    if isinstance(layer, BaseLinearLayerWithLoRA):
        return linear_parts(layer, index, module.shard, module.part)
    return whole_parts(layer, index)


def _fused(known: Known, experts: str) -> Fused:
    """Return how a revision's gate and up share fused experts."""
    assert known.revision is not None
    pairs = {m.name: m for m in known.revision.modules if m.name.startswith(f"{experts}.")}
    gate, up = pairs.get(f"{experts}.gate_proj"), pairs.get(f"{experts}.up_proj")
    if gate is None or up is None:
        return Fused(shared=True, gate_rank=0)
    return Fused(shared=gate.proof[0] == up.proof[0], gate_rank=gate.rank)


def _layer(residency: Residency, lora_int_id: int, known: Known, wrapper: str) -> tuple[Any, int]:
    """Return the layer and the slot that hold the adapter: its own, or a scratch of the layer."""
    manager = residency.manager
    layer = manager.modules[wrapper]
    if lora_int_id in manager.lora_index_to_id:
        return layer, manager.lora_index_to_id.index(lora_int_id)
    scratch = _scratch(layer)
    model = known.model or manager._registered_adapters.cache.get(lora_int_id)
    if model is None:
        raise EngineRejected(f"adapter {known.name} was evicted while it was proved")
    if isinstance(model, direct.DirectModel):
        write_plan(_redirected(model.plan, layer, scratch), 0)
        return scratch, 0
    weights = manager._get_lora_layer_weights(model, wrapper)
    if weights is None:
        scratch.reset_lora(0)
    else:
        scratch.set_lora(0, weights.lora_a, weights.lora_b)
    return scratch, 0


def _scratch(layer: Any) -> Any:
    """Return `layer` with buffers of its own for one slot, full of what no adapter holds."""
    scratch = copy.copy(layer)
    scratch.__dict__ = dict(layer.__dict__)
    for name in _STACKS:
        stacked = layer.__dict__.get(name)
        if isinstance(stacked, torch.Tensor):
            scratch.__dict__[name] = torch.ones_like(stacked[:1])
        elif isinstance(stacked, tuple):
            scratch.__dict__[name] = tuple(torch.ones_like(each[:1]) for each in stacked)
    if isinstance(layer, FusedMoEWithLoRA):
        scratch.__dict__["adapter_enabled"] = torch.ones_like(layer.adapter_enabled)
    return scratch


def _redirected(plan: SlotPlan, layer: Any, scratch: Any) -> SlotPlan:
    """Return the part of `plan` that fills `layer`, for the buffers of `scratch`."""
    places = {
        id(slots): own
        for slots, own in zip(slot_tensors(layer), slot_tensors(scratch), strict=True)
    }
    flags = [scratch.adapter_enabled] if isinstance(layer, FusedMoEWithLoRA) else []
    own_flag = getattr(layer, "adapter_enabled", None)
    return SlotPlan(
        tuple(
            LayerFill(
                tuple(
                    fill._replace(slots=places[id(fill.slots)])
                    for fill in part.fills
                    if id(fill.slots) in places
                ),
                tuple(flags if any(flag is own_flag for flag in part.enabled) else ()),
                tuple(flags if any(flag is own_flag for flag in part.disabled) else ()),
            )
            for part in plan.layers
            if any(id(fill.slots) in places for fill in part.fills)
        )
    )
