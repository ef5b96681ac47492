"""What one engine can take: the facts that preflight and layout check an adapter against."""

from __future__ import annotations

import json
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, TypeVar


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
        """Return the profile that `to_json` wrote. Raises ValueError, one line, for anything else."""
        try:
            raw = json.loads(text)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        modules: Any = raw.pop("modules", []) if isinstance(raw, dict) else []
        if not isinstance(modules, list):
            raise ValueError(f"modules is {type(modules).__name__}, expected list")
        read = [_read(LoraModule, each, f"modules[{i}]") for i, each in enumerate(modules)]
        return replace(_read(cls, raw, ""), modules=tuple(read))


_T = TypeVar("_T", EngineProfile, LoraModule)
_SIMPLE: dict[str, type[Any]] = {"str": str, "int": int, "bool": bool}
_FIELDS: dict[type[Any], dict[str, str]] = {
    kind: {each.name: str(each.type) for each in fields(kind)}
    for kind in (EngineProfile, LoraModule)
}
_NEEDED: dict[type[Any], list[str]] = {
    kind: [
        each.name
        for each in fields(kind)
        if each.default is MISSING and each.default_factory is MISSING
    ]
    for kind in (EngineProfile, LoraModule)
}


def _read(kind: type[_T], raw: Any, where: str) -> _T:
    """Return the `kind` that a JSON object holds, with every value of the type it is declared."""
    if not isinstance(raw, dict):
        raise ValueError(f"{where or 'it'} is {type(raw).__name__}, expected an object")
    values = {name: _value(kind, name, value, where) for name, value in raw.items()}
    for name in _NEEDED[kind]:
        if name not in values:
            raise ValueError(f"{where}.{name}".lstrip(".") + " is missing")
    return kind(**values)


def _value(kind: type[EngineProfile] | type[LoraModule], name: str, value: Any, where: str) -> Any:
    path = f"{where}.{name}".lstrip(".")
    declared = _FIELDS[kind].get(name)
    if declared is None:
        raise ValueError(f"{path[:80]!r} is unknown")
    if declared == "ModuleKind":
        return ModuleKind(value)
    wanted = _SIMPLE.get(declared, list)
    if type(value) is not wanted:  # true is an int too, for isinstance
        raise ValueError(f"{path} is {type(value).__name__}, expected {wanted.__name__}")
    if wanted is not list:
        return value
    if not all(isinstance(item, str) for item in value):
        raise ValueError(f"{path} holds more than names")
    return tuple(value)
