"""What slots and arena take, worked out before there is an engine: `lorafleet size`.

A slot holds the largest adapter that the engine takes, whatever is in it. The arena holds each
adapter as it is: its canonical image, in steps of the arena's pages.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lorafleet.dtypes import ITEM_BYTES, SAFETENSORS_NAMES
from lorafleet.errors import InvalidAdapter
from lorafleet.header import SafetensorsHeader, TensorEntry
from lorafleet.layout import plan_layout
from lorafleet.profile import ModuleKind
from lorafleet.quoting import shown
from lorafleet.strict_json import load_object

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lorafleet.peft_config import AdapterConfig
    from lorafleet.profile import EngineProfile, LoraModule

STEP_BYTES: Final = 2 << 20
"""The arena's extents begin and end at multiples of this."""
_PADDING: Final = 64
"""vLLM makes room for a vocabulary in multiples of this."""
_MAX_CONFIG_BYTES: Final = 1 << 20


def slot_bytes(profile: EngineProfile) -> int:
    """Return the device bytes of one LoRA slot of an engine on one GPU, in vLLM's own layout."""
    values = sum(profile.max_lora_rank * _features(module) for module in profile.modules)
    return values * ITEM_BYTES[SAFETENSORS_NAMES[profile.dtype]]


def _features(module: LoraModule) -> int:
    """Return how many values a slot has of a module for each rank."""
    rows = module.out_features
    if module.name == "lm_head":
        rows += -rows % _PADDING
    return (module.in_features + rows) * max(1, module.num_experts)


@dataclass(frozen=True)
class AdapterSize:
    """What one adapter takes."""

    rank: int
    modules: int
    weight_bytes: int
    extent_bytes: int
    """Bytes of the arena."""


def adapter_size(
    header: SafetensorsHeader, config: AdapterConfig, profile: EngineProfile, adapter: str
) -> AdapterSize:
    """Return what the adapter takes of an arena. Raises AdapterRejected as staging does."""
    layout = plan_layout(header, config, profile, adapter=adapter)
    image = len(layout.image_header) + layout.data_bytes
    return AdapterSize(
        rank=layout.rank,
        modules=len(layout.modules),
        weight_bytes=layout.data_bytes,
        extent_bytes=image + -image % STEP_BYTES,
    )


def expected_header(
    config: AdapterConfig, config_json: bytes, profile: EngineProfile
) -> SafetensorsHeader:
    """Return the header of the file that PEFT will write for this config, in the engine's type.

    Raises InvalidAdapter if the config names no module of the engine.
    """
    targets: Any = load_object(config_json, _MAX_CONFIG_BYTES).get("target_modules")
    dtype = SAFETENSORS_NAMES[profile.dtype]
    entries, at = [], 0
    for name, rows, columns, embedding in _adapted(targets, profile):
        rank = config.rank_for(name)
        for side, shape in (("A", (rank, columns)), ("B", (rows, rank))):
            suffix = f"lora_embedding_{side}" if embedding else f"lora_{side}.weight"
            size = shape[0] * shape[1] * ITEM_BYTES[dtype]
            entries.append(
                TensorEntry(f"base_model.model.{name}.{suffix}", dtype, shape, at, at + size)
            )
            at += size
    if not entries:
        raise InvalidAdapter(
            f"target_modules {shown(str(targets), 80)} names no module of {profile.base_model}"
        )
    return SafetensorsHeader(tuple(entries), {}, at)


def _adapted(targets: Any, profile: EngineProfile) -> Iterator[tuple[str, int, int, bool]]:
    """Yield name, out, in and whether it is an embedding, of each module that PEFT would adapt."""
    for module in profile.modules:
        names = [module.name]
        if module.kind is ModuleKind.EXPERTS:
            block, _, projection = module.name.rpartition(".")
            names = [f"{block}.{number}.{projection}" for number in range(module.num_experts)]
        embedding = module.kind is ModuleKind.EMBEDDING
        for name in names:
            if _is_target(name, targets, embedding):
                yield name, module.out_features, module.in_features, embedding


def _is_target(name: str, targets: Any, embedding: bool) -> bool:
    if targets == "all-linear":
        return not embedding and name != "lm_head"
    if isinstance(targets, str):
        return re.fullmatch(targets, name) is not None
    return any(name == each or name.endswith(f".{each}") for each in targets or ())
