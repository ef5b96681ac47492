"""Which tensors the running engine takes: read from its live LoRA wrappers, never from a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lorafleet.profile import LoraModule, ModuleKind
from vllm.lora.layers import (
    FusedMoEWithLoRA,
    LogitsProcessorWithLoRA,
    VocabParallelEmbeddingWithLoRA,
)
from vllm.lora.layers.base_linear import BaseLinearLayerWithLoRA
from vllm.model_executor.layers.linear import QKVParallelLinear

MOE_PROJECTIONS = ("gate_proj", "down_proj", "up_proj")  # vLLM's w1, w2, w3


@dataclass(frozen=True)
class Target:
    """One adaptable module: its PEFT name and shapes, and where vLLM keeps it.

    `wrapper` is the key in the LoRA manager's `modules`; `part` the position within a wrapper
    that packs several (q, k, v; gate, up; w1, w2, w3).
    """

    module: LoraModule
    wrapper: str
    part: int


def read_targets(manager: Any) -> dict[str, Target]:
    """Return PEFT name -> target for every module of `manager` (a LoRAModelManager)."""
    to_peft = _NameInverse(manager.model)
    found: dict[str, Target] = {}
    for wrapper, layer in manager.modules.items():
        for part, (name, kind, in_features, out_features, experts) in enumerate(
            _parts(manager, wrapper, layer)
        ):
            peft = to_peft(name)
            module = LoraModule(peft, in_features, out_features, kind, experts)
            found[peft] = Target(module, wrapper, part)
    return found


_Part = tuple[str, ModuleKind, int, int, int]


def _parts(manager: Any, wrapper: str, layer: Any) -> list[_Part]:
    base = layer.base_layer
    if isinstance(layer, LogitsProcessorWithLoRA) and layer.lora_a_stacked.is_meta:
        return []  # vLLM 0.26 wraps the head that a pooling model was made without
    if isinstance(layer, VocabParallelEmbeddingWithLoRA):
        vocabulary = layer.lora_a_stacked.shape[1]
        return [(wrapper, ModuleKind.EMBEDDING, vocabulary, base.embedding_dim, 0)]
    if isinstance(layer, LogitsProcessorWithLoRA):
        return [(wrapper, ModuleKind.LINEAR, layer.hidden_size, base.vocab_size, 0)]
    if isinstance(layer, FusedMoEWithLoRA):
        return _expert_parts(manager, wrapper, layer)
    if isinstance(layer, BaseLinearLayerWithLoRA):
        names = manager.packed_modules.get(wrapper) or [wrapper]
        outs = _output_sizes(base, len(names))
        return [
            (name, ModuleKind.LINEAR, base.input_size, out, 0)
            for name, out in zip(names, outs, strict=True)
        ]
    return []  # a wrapper of a kind that neither loader fills, such as a classification head


def _output_sizes(base: Any, parts: int) -> list[int]:
    """Return the full (not sharded) output features of each of a linear layer's parts."""
    if isinstance(base, QKVParallelLinear):
        kv = base.total_num_kv_heads * base.head_size
        values = base.total_num_kv_heads * getattr(base, "v_head_size", base.head_size)
        sizes = [base.total_num_heads * base.head_size, kv, values]
    else:
        sizes = list(getattr(base, "output_sizes", None) or [base.output_size])
    if parts == len(sizes):
        return sizes
    # Fewer names than slices: the first name covers the leading slices (vLLM's in_proj_qkv).
    lead = len(sizes) - parts + 1
    return [sum(sizes[:lead]), *sizes[lead:]]


def _expert_parts(manager: Any, wrapper: str, layer: Any) -> list[_Part]:
    """Return gate, down, up (or up, down) of all experts, in vLLM's order w1, w2, w3."""
    moe = layer.moe_config
    intermediate = layer.intermediate_size_per_partition * layer.tp_size
    gated = bool(moe.is_act_and_mul)
    sizes = [(layer.hidden_size, intermediate), (intermediate, layer.hidden_size)]
    if gated:
        sizes.append((layer.hidden_size, intermediate))
    names = _projection_names(manager, wrapper, len(sizes))
    return [
        (f"{wrapper}.{name}", ModuleKind.EXPERTS, wide, out, layer.global_num_experts)
        for name, (wide, out) in zip(names, sizes, strict=True)
    ]


def _projection_names(manager: Any, wrapper: str, count: int) -> tuple[str, ...]:
    """Return what checkpoints call w1, w2, w3 here, from vLLM's own expert mapping."""
    packed = manager.packed_modules.get(wrapper) or []
    names = tuple(name.rpartition(".")[2] for name in packed[:count])
    if len(names) == count and packed[0].removeprefix(f"{wrapper}.").startswith("0."):
        return names
    return MOE_PROJECTIONS if count == 3 else ("up_proj", "down_proj")


class _NameInverse:
    """vLLM's module name -> the checkpoint's (and so PEFT's) name, by inverting its mapper."""

    def __init__(self, model: Any) -> None:
        mapper = rename_mapper(model)
        self._mapper = mapper
        self._prefixes: list[tuple[str, str]] = []
        if mapper is not None:
            pairs = list(mapper.orig_to_new_prefix.items()) + list(
                mapper.orig_to_new_substr.items()
            )
            self._prefixes = [(old, new) for old, new in pairs if new]

    def __call__(self, name: str) -> str:
        if self._mapper is None:
            return name
        candidates = [name.replace(new, old, 1) for old, new in self._prefixes if new in name]
        for candidate in [*candidates, name]:
            if self._mapper._map_name(candidate) == name:
                return candidate
        return name


def rename_mapper(model: Any) -> Any:
    """Return the model's checkpoint-to-vLLM renaming without stacking, or None.

    The method is get_rename_mapper from 0.27 on and get_unstacked_mapper before.
    """
    mapper = getattr(model, "hf_to_vllm_mapper", None)
    if mapper is None:
        return None
    for method in ("get_rename_mapper", "get_unstacked_mapper"):
        if hasattr(mapper, method):
            return getattr(mapper, method)()
    return mapper
