"""PEFT itself reads our canonical images, and we read what PEFT itself writes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from format_cases import (
    CASES,
    EXPECTED,
    canonical_data,
    deltas,
    engine_of,
    numbers,
    plan,
    profile,
    read_source,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from lorafleet.peft_config import AdapterConfig
from tiny_models import DENSE, MOE

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.engine


def dense_model() -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(Qwen3Config(**DENSE))


@pytest.mark.parametrize(
    "case",
    [
        "d01-plain-bf16",
        "d06-rank-and-alpha-pattern",
        "d11-rslora",
        "d16-embed-and-lm-head-lora",
        "d21-orig-mod-prefix",
        "d28-fused-qkv",
        "d32-target-modules-regex",
    ],
)
def test_peft_loads_the_canonical_image(case: str, tmp_path: Path) -> None:
    from peft import PeftModel

    source = read_source(CASES / case)
    layout = plan(source, replace(engine_of(case), dtype="float32"))
    image = layout.image_header + bytes(canonical_data(source, layout))
    (tmp_path / "adapter_model.safetensors").write_bytes(image)
    (tmp_path / "adapter_config.json").write_bytes(layout.config_json)
    model = PeftModel.from_pretrained(dense_model(), str(tmp_path))
    for name, wanted in EXPECTED[case][""].items():
        layer = model.get_submodule(f"base_model.model.{name}")
        if "embed_tokens" in name:
            a, b = layer.lora_embedding_A["default"], layer.lora_embedding_B["default"]
        else:
            a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
        found = numbers(
            a.detach().double().numpy(), b.detach().double().numpy(), layer.scaling["default"]
        )
        for key in ("scaling", "fro", "sum", "probe"):
            assert found[key] == pytest.approx(wanted[key], rel=1e-9, abs=1e-9), (name, key)


@pytest.mark.parametrize(
    ("parameters", "rank"),
    [
        (["gate_up_proj", "down_proj"], 1),
        (["down_proj", "gate_up_proj"], 3),
        (["gate_up_proj"], 2),
        (["down_proj"], 2),
    ],
)
def test_what_peft_writes_for_target_parameters(
    parameters: list[str], rank: int, tmp_path: Path
) -> None:
    """Independent of EXPECTED.json: the updates are those that PEFT adds to the base weights."""
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(rank)
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**MOE))
    config = LoraConfig(
        r=rank,
        lora_alpha=6,
        target_modules=["q_proj"],
        target_parameters=[f"mlp.experts.{name}" for name in parameters],
        rank_pattern={"q_proj": 2},
        alpha_pattern={"experts.gate_up_proj": 3},
        base_model_name_or_path="tiny/qwen3-moe",
    )
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    adapted = get_peft_model(model, config)
    for name, tensor in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(tensor)
    adapted.save_pretrained(str(tmp_path))
    after = adapted.merge_and_unload().state_dict()

    source = read_source(tmp_path)
    engine = replace(profile("qwen3-moe"), dtype="float32")
    layout = plan(source, engine)
    found = deltas(layout, canonical_data(source, layout))
    inner = MOE["moe_intermediate_size"]
    for layer in range(2):
        experts = f"model.layers.{layer}.mlp.experts"
        wanted = {}
        for name in parameters:
            change = (after[f"{experts}.{name}"] - before[f"{experts}.{name}"]).double().numpy()
            for e, one in enumerate(change):
                if name == "down_proj":
                    wanted[f"{experts}.{e}.down_proj"] = one
                else:
                    wanted[f"{experts}.{e}.gate_proj"] = one[:inner]
                    wanted[f"{experts}.{e}.up_proj"] = one[inner:]
        q = f"model.layers.{layer}.self_attn.q_proj"
        wanted[q] = (after[f"{q}.weight"] - before[f"{q}.weight"]).double().numpy()
        for name, delta in wanted.items():
            expected = numbers(torch.eye(delta.shape[1]).numpy(), delta, 1.0)
            for key in ("fro", "sum", "probe"):
                assert found[name][key] == pytest.approx(expected[key], rel=1e-3, abs=1e-4), name


SEGMENTS = st.sampled_from(["model", "layers", "1", "11", "q_proj", "xq_proj", "a", ""])
NAMES = st.lists(SEGMENTS, min_size=1, max_size=4).map(".".join)
KEYS = st.one_of(
    NAMES,
    NAMES.map(lambda key: "^" + key.replace(".", r"\.")),
    NAMES.map(lambda key: key.replace("1", r"\d+") + "$"),
    st.sampled_from([r".*\.layers\.1\..*", "(q|xq)_proj", "[^.]*", "x?q_proj"]),
)


@settings(deadline=None, max_examples=300)
@given(st.lists(KEYS, max_size=6, unique=True), st.lists(NAMES, min_size=1, max_size=5))
def test_patterns_apply_as_peft_applies_them(keys: list[str], names: list[str]) -> None:
    from peft.utils.other import get_pattern_key

    values = {key: index + 1 for index, key in enumerate(keys)}
    config = AdapterConfig(r=100, lora_alpha=100.0, rank_pattern=values, alpha_pattern=values)
    for name in names:
        # LoraModel._create_and_replace looks up what get_pattern_key returns.
        wanted = values.get(get_pattern_key(keys, name), 100)
        assert config.rank_for(name) == wanted
        assert config.alpha_for(name) == wanted
