"""Random legal adapters, dense and of experts: our updates are those that PEFT itself merges.

Nothing here knows what a format means: PEFT makes the adapter, saves it and merges it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from format_cases import Source, canonical_data, factors_of, plan, profile
from hypothesis import event, given, settings
from hypothesis import strategies as st
from lorafleet.header import header_length, parse_header
from peft_skeletons import exact, merged, skeleton

if TYPE_CHECKING:
    from collections.abc import Mapping

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
SOME_EXPERTS = r".*\.experts\.[0136]\.(gate|down)_proj"
PATTERNS = {
    "dense": (
        *("q_proj", "down_proj", "qkv_proj", "gate_up_proj", "embed_tokens", "lm_head"),
        *(r"layers\.1\..*", r".*mlp.*", "(q|k)_proj", r"[01]\.self_attn\.\w+_proj"),
        *("model.layers.0.self_attn.v_proj", "^model.layers.0.mlp.up_proj", "q_proj|o_proj"),
    ),
    "moe": (
        *("gate_proj", "down_proj", "mlp.gate", "q_proj", "gate_up_proj", "experts.down_proj"),
        *(r"experts\.[0-3]\..*", r".*\.experts\..*", r"layers\.1\.mlp\..*", r".*gate.*"),
        *("model.layers.0.mlp.experts.5.up_proj", r"layers\.0\.mlp\.experts\.gate_up_proj"),
    ),
}
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class Recipe:
    """What a person chose before training."""

    engine: str
    seed: int
    dtype: str
    config: dict[str, Any]
    skeleton: dict[str, bool] = field(default_factory=dict)
    stacked: bool = False  # written as Megatron's exporters do, in three dimensions


@st.composite
def recipes(draw: st.DrawFn, engine: str) -> Recipe:
    keys = st.sampled_from(PATTERNS[engine])
    config = {
        "r": draw(st.integers(1, 8)),
        "lora_alpha": draw(st.integers(1, 32)),
        "use_rslora": draw(st.booleans()),
        "rank_pattern": draw(st.dictionaries(keys, st.integers(1, 8), max_size=3)),
        "alpha_pattern": draw(st.dictionaries(keys, st.integers(1, 64), max_size=3)),
    }
    common = (draw(st.integers(0, 1000)), draw(st.sampled_from(sorted(DTYPES))))
    if engine == "dense":
        fused = draw(st.booleans())
        names = (*ATTENTION, *MLP) if not fused else ("qkv_proj", "o_proj", "gate_up_proj")
        modules = _some(draw, (*names, "embed_tokens", "lm_head"))
        layer = draw(st.sampled_from([None, [0], [1]]))
        if layer and not {"embed_tokens", "lm_head"} & set(modules):
            config["layers_to_transform"] = layer
        return Recipe(engine, *common, {**config, "target_modules": modules}, {"fused": fused})
    layout = draw(st.sampled_from(["one by one", "fused", "flat", "transposed", "stacked"]))
    event(layout)
    if layout in ("one by one", "fused"):
        names = MLP if layout == "one by one" else ("gate_up_proj", "down_proj")
        modules = draw(st.sampled_from([SOME_EXPERTS, ""])) if names == MLP else ""
        config["target_modules"] = modules or _some(draw, (*names, *ATTENTION[3:], "gate"))
        return Recipe(engine, *common, config, {"fused": layout == "fused"})
    parameters = _some(draw, ("mlp.experts.gate_up_proj", "mlp.experts.down_proj"))
    config |= {
        "target_parameters": parameters,
        "target_modules": draw(st.sampled_from([[], ["q_proj", "gate"]])),
    }
    flat = {"flat": True, "transposed": layout == "transposed"}
    return Recipe(engine, *common, config, flat, stacked=layout == "stacked")


def _some(draw: st.DrawFn, names: tuple[str, ...]) -> list[str]:
    return draw(st.lists(st.sampled_from(names), min_size=1, unique=True))


def trained(recipe: Recipe) -> tuple[Source, Mapping[str, torch.Tensor]]:
    """Return the adapter as PEFT saves it, and what PEFT merges into a model of zeros."""
    from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
    from safetensors.torch import save

    config = LoraConfig(base_model_name_or_path=f"tiny/qwen3-{recipe.engine}", **recipe.config)
    model = skeleton(profile(f"qwen3-{recipe.engine}").modules, **recipe.skeleton)
    model = get_peft_model(model, config)
    generator = torch.Generator().manual_seed(recipe.seed)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if ".lora_" in name:
                tensor.copy_(exact(tensor.shape, generator))
    state = get_peft_model_state_dict(model, save_embedding_layers=False)
    state = {name: tensor.to(DTYPES[recipe.dtype]).clone() for name, tensor in state.items()}
    said = {key: sorted(v) if isinstance(v, set) else v for key, v in config.to_dict().items()}
    if recipe.skeleton.get("transposed"):
        said["peft_version"] = "0.18.0"
    if recipe.stacked:
        state = in_three_dimensions(state, recipe.config["target_parameters"])
    raw = save({name: tensor.contiguous() for name, tensor in state.items()})
    length = header_length(raw[:8])
    data = raw[8 + length :]
    source = Source(parse_header(raw[8 : 8 + length], len(data)), data, json.dumps(said).encode())
    return source, merged(model.merge_and_unload())


def in_three_dimensions(
    state: dict[str, torch.Tensor], parameters: list[str]
) -> dict[str, torch.Tensor]:
    """Return PEFT's flat pairs as stacks [8 experts, ..] under their parameters' names."""
    found = {}
    for name, tensor in state.items():
        head, experts, tail = name.partition(".experts.")
        if not experts:
            found[name] = tensor
            continue
        inner = tail.startswith("base_layer.") or len(parameters) == 1 == parameters[0].count(
            "gate_up"
        )
        parameter = "gate_up_proj" if inner else "down_proj"
        rank = tensor.shape["lora_B" in tail] // 8
        if "lora_A" in tail:
            tensor = tensor.reshape(8, rank, -1)
        else:
            tensor = tensor.reshape(-1, rank, 8).permute(2, 0, 1)
        found[f"{head}.experts.{parameter}.{tail.removeprefix('base_layer.')}"] = tensor
    return found


def assert_equal(recipe: Recipe) -> None:
    source, wanted = trained(recipe)
    engine = replace(profile(f"qwen3-{recipe.engine}"), dtype="float32")
    layout = plan(source, engine)
    found = factors_of(layout, canonical_data(source, layout, 4096))
    touched = {name for name, delta in wanted.items() if delta.any()}
    assert touched <= set(found) <= set(wanted)
    for name, (a, b, scaling) in found.items():
        np.testing.assert_allclose(
            scaling * (b @ a), wanted[name].numpy(), rtol=1e-12, atol=1e-9, err_msg=name
        )


@pytest.mark.parametrize("engine", ["dense", "moe"])
def test_the_updates_are_those_that_peft_merges(engine: str) -> None:
    @settings(max_examples=50)
    @given(recipes(engine))
    def check(recipe: Recipe) -> None:
        assert_equal(recipe)

    check()
