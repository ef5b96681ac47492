"""What one engine can take: the facts that preflight and layout check an adapter against."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class ModuleKind(StrEnum):
    """How an engine module uses its LoRA pair."""

    LINEAR = "linear"  # A [rank, in], B [out, rank]
    EMBEDDING = "embedding"  # lora_embedding_A [rank, vocab], lora_embedding_B [hidden, rank]
    EXPERTS = "experts"  # one projection of all experts: A [E, rank, in], B [E, out, rank]


@dataclass(frozen=True)
class LoraModule:
    """One adaptable module, under the name that PEFT uses for it (packed ones are split).

    `name` for experts is `<...>.mlp.experts.<projection>`, the expert index left out.
    """

    name: str
    in_features: int
    out_features: int
    kind: ModuleKind = ModuleKind.LINEAR
    num_experts: int = 0


@dataclass(frozen=True)
class EngineProfile:
    """What the plugin reads from the running engine (never from a table).

    `modules` is empty when nobody knows them (an engine without the plugin): shapes are then
    not checked. `dtype` is the engine's lora_dtype ("bfloat16", "float16") or "" if unknown.
    """

    base_model: str  # first served model name
    base_model_aliases: tuple[str, ...] = ()  # other served names, and the model path
    dtype: str = ""
    max_lora_rank: int = 0
    max_loras: int = 0
    max_cpu_loras: int = 0
    vocab_size: int = 0
    num_hidden_layers: int = 0
    tensor_parallel_size: int = 1
    expert_parallel: bool = False
    api_servers: int = 1
    vllm_version: str = ""
    plugin_version: str = ""
    flags: tuple[str, ...] = ()  # e.g. "enable_mixed_moe_lora_format"
    modules: tuple[LoraModule, ...] = field(default=())

    def to_json(self) -> str:
        """Return the profile as JSON, the form that crosses process borders."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> EngineProfile:
        """Return the profile that `to_json` wrote. Raises ValueError for anything else."""
        raw: dict[str, Any] = json.loads(text)
        modules = tuple(
            LoraModule(**{**module, "kind": ModuleKind(module["kind"])})
            for module in raw.pop("modules", ())
        )
        for name in ("base_model_aliases", "flags"):
            raw[name] = tuple(raw.get(name, ()))
        return cls(modules=modules, **raw)
