"""The canonical config gives each tensor of the image exactly its rank and scaling."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
from format_builders import config_text, pair, source
from format_cases import plan, profile
from hypothesis import given, settings
from hypothesis import strategies as st
from lorafleet.canonical import CanonicalModule, PackedTensor
from lorafleet.canonical_config import alpha_for, canonical_config
from lorafleet.peft_config import AdapterConfig
from lorafleet.profile import ModuleKind

NOWHERE = PackedTensor(0, (1, 1))


def module(kind: ModuleKind, rank: int, scaling: float | tuple[float, ...]) -> CanonicalModule:
    return CanonicalModule(kind, rank, scaling, NOWHERE, NOWHERE)


SCALINGS = st.sampled_from([2.0, 0.25, 5.656854249492381, 4 / 3, 0.1, 16 / 7**0.5])
LINEAR = st.builds(module, st.just(ModuleKind.LINEAR), st.integers(1, 9), SCALINGS)
EXPERTS = st.builds(
    module,
    st.just(ModuleKind.EXPERTS),
    st.integers(1, 9),
    SCALINGS | st.tuples(SCALINGS, SCALINGS, SCALINGS),
)
MODULES = st.dictionaries(
    st.builds("model.layers.{}.self_attn.{}".format, st.integers(0, 12), st.sampled_from("qkv")),
    LINEAR,
    min_size=1,
) | st.dictionaries(
    st.builds("model.layers.{}.mlp.experts.{}".format, st.integers(0, 12), st.sampled_from("gud")),
    EXPERTS,
    min_size=1,
)


def peft_value(patterns: dict[str, Any], name: str, default: Any) -> Any:
    """PEFT's own rule, with its own `re`."""
    for key, value in patterns.items():
        if re.match(rf"(.*\.)?({key})$", name):
            return value
    return default


@settings(deadline=None, max_examples=200)
@given(MODULES)
def test_peft_reads_back_every_rank_and_scaling(modules: dict[str, CanonicalModule]) -> None:
    text = canonical_config(modules, "org/base")
    raw = json.loads(text)
    ours = AdapterConfig.parse(text, adapter="x")
    for name, entry in modules.items():
        scalings = entry.scaling if isinstance(entry.scaling, tuple) else (entry.scaling,) * 3
        head, _, last = name.rpartition(".")
        names = [f"{head}.{e}.{last}" for e in range(3)]
        if entry.kind is ModuleKind.LINEAR:
            names, scalings = [name], scalings[:1]
        for file_name, scaling in zip(names, scalings, strict=True):
            rank = peft_value(raw["rank_pattern"], file_name, raw["r"])
            alpha = peft_value(raw["alpha_pattern"], file_name, raw["lora_alpha"])
            assert rank == entry.rank
            assert abs(alpha / rank - scaling) <= 1e-15 * scaling
            assert np.float32(alpha / rank) == np.float32(scaling)
            assert (ours.rank_for(file_name), ours.alpha_for(file_name)) == (rank, alpha)


@given(st.integers(1, 512), st.floats(1e-6, 1e6))
def test_alpha_gives_the_scaling_back(rank: int, scaling: float) -> None:
    assert abs(alpha_for(scaling, rank) / rank - scaling) <= 2.3e-16 * scaling


def test_whole_numbers_and_one_key_for_all_layers() -> None:
    experts = {
        f"model.layers.{layer}.mlp.experts.{name}": module(ModuleKind.EXPERTS, 1, 8.0)
        for layer in range(48)
        for name in ("gate_proj", "up_proj", "down_proj")
    }
    attention = {
        f"model.layers.{layer}.self_attn.{name}": module(ModuleKind.LINEAR, 8, 2.0)
        for layer in range(48)
        for name in ("q_proj", "k_proj", "v_proj", "o_proj")
    }
    raw = json.loads(canonical_config(attention | experts, "org/base"))
    assert (raw["r"], raw["lora_alpha"], raw["use_rslora"]) == (8, 16, False)
    assert raw["base_model_name_or_path"] == "org/base"
    assert raw["target_modules"] == sorted(
        ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    )
    key = r"^model\.layers\.\d+\.mlp\.experts\.\d+\.{}"
    names = [key.replace("{}", name) for name in ("down_proj", "gate_proj", "up_proj")]
    assert sorted(raw["rank_pattern"]) == names
    assert raw["alpha_pattern"] == dict.fromkeys(raw["rank_pattern"], 8)


def test_rslora_becomes_an_alpha() -> None:
    adapter = source(
        pair("model.layers.0.self_attn.q_proj", 6, 256, 256),
        config_text(r=6, alpha=12, use_rslora=True),
    )
    layout = plan(adapter, replace(profile("qwen3-dense"), max_lora_rank=8))
    raw = json.loads(layout.config_json)
    assert not raw["use_rslora"]
    assert raw["lora_alpha"] / raw["r"] == 12 / 6**0.5
    assert layout.modules["model.layers.0.self_attn.q_proj"].scaling == 12 / 6**0.5
