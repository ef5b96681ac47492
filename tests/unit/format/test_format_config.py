"""adapter_config.json: rank and scaling as PEFT computes them, refusals in one line."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from format_builders import config_text
from hypothesis import given, settings
from hypothesis import strategies as st
from lorafleet.errors import AdapterRejected, InvalidAdapter
from lorafleet.peft_config import MAX_CONFIG_BYTES, AdapterConfig


def parse(text: bytes) -> AdapterConfig:
    return AdapterConfig.parse(text, adapter="team-a/sql")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"use_dora": True}, "DoRA is not supported"),
        ({"lora_bias": True}, "lora_bias is not supported"),
        ({"bias": "all"}, "bias: all is not supported"),
        ({"bias": "lora_only"}, "bias: lora_only is not supported"),
        ({"alora_invocation_tokens": [7, 9]}, "aLoRA (alora_invocation_tokens) is not supported"),
        (
            {"init_lora_weights": "pissa_niter_16"},
            "init_lora_weights=pissa_niter_16 changes the base weights; "
            "convert with path_initial_model_for_weight_conversion",
        ),
        ({"init_lora_weights": "olora"}, "init_lora_weights=olora changes the base weights"),
        ({"init_lora_weights": "loftq"}, "init_lora_weights=loftq changes the base weights"),
        ({"init_lora_weights": "corda"}, "init_lora_weights=corda changes the base weights"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save [lm_head] is not supported"),
        ({"layer_replication": [[0, 2]]}, "layer_replication is not supported"),
        ({"use_bdlora": {"nblocks": 2}}, "block-diagonal LoRA (use_bdlora) is not supported"),
        ({"use_qalora": True}, "QALoRA (use_qalora) is not supported"),
        ({"trainable_token_indices": [3]}, "trainable_token_indices is not supported"),
        ({"kasa_config": {"beta": 0.1}}, "KaSA (kasa_config) is not supported"),
        ({"peft_type": "IA3"}, "peft_type IA3 is not supported, expected LORA"),
        ({"r": 0}, "has rank 0 for r, expected 1 to 65536"),
        ({"r": True}, "has rank True for r"),
        ({"r": "4"}, "has rank str for r"),
        ({"r": None}, "adapter_config.json has no r"),
        ({"lora_alpha": None}, "adapter_config.json has no lora_alpha"),
        ({"lora_alpha": float("nan")}, "has nan for lora_alpha, expected a finite number"),
        ({"lora_alpha": float("inf")}, "has inf for lora_alpha, expected a finite number"),
        ({"lora_alpha": 10**400}, "expected a finite number"),
        ({"rank_pattern": []}, None),
        ({"rank_pattern": [1]}, "has a rank_pattern that is not an object"),
        ({"rank_pattern": {"q": 0}}, "has rank 0 for q"),
        ({"alpha_pattern": {"q": "x"}}, "has str for q, expected a finite number"),
        ({"rank_pattern": {"(?=q)": 4}}, "rank_pattern key (?=q) has a (?..) group"),
        ({"alpha_pattern": {"(q": 4}}, "alpha_pattern key (q has an unbalanced ("),
    ],
)
def test_what_cannot_be_applied_is_refused(fields: dict[str, Any], message: str | None) -> None:
    if message is None:
        assert parse(config_text(**fields)).rank_pattern == {}
        return
    with pytest.raises(InvalidAdapter) as refused:
        parse(config_text(**fields))
    assert str(refused.value).startswith("adapter team-a/sql: ")
    assert str(refused.value).count("adapter team-a/sql") == 1
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "is not JSON"),
        (b"[]", "is not a JSON object"),
        (b"\xff", "is not UTF-8"),
        (b'{"r": 1, "r": 2}', "has two entries named r"),
        (b"[" * 100_000, "is nested too deeply"),
        (b" " * (MAX_CONFIG_BYTES + 1), "has 1048577 bytes, at most 1048576"),
    ],
)
def test_malformed_text_is_refused(text: bytes, message: str) -> None:
    with pytest.raises(InvalidAdapter) as refused:
        parse(text)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"init_lora_weights": value}
        for value in (True, False, None, "gaussian", "eva", "orthogonal", "mica", "lora_ga")
    ]
    + [
        {"some_future_field": {"x": 1}, "runtime_config": None, "velora_config": None},
        {"loftq_config": {}, "eva_config": None, "modules_to_save": [], "bias": None},
        {"peft_type": "lora", "target_modules": None},
        {"lora_dropout": 0.1, "exclude_modules": ["lm_head"], "layers_to_transform": [1]},
    ],
)
def test_what_changes_no_mathematics_is_accepted(fields: dict[str, Any]) -> None:
    assert parse(config_text(**fields)).r == 4


@pytest.mark.parametrize(
    ("fields", "module", "rank", "scaling"),
    [
        ({}, "model.layers.0.self_attn.q_proj", 4, 2.0),
        ({"use_rslora": True}, "model.layers.0.self_attn.q_proj", 4, 4.0),
        ({"rank_pattern": {"q_proj": 2}}, "model.layers.0.self_attn.q_proj", 2, 4.0),
        ({"rank_pattern": {"k_proj": 2}}, "model.layers.0.self_attn.q_proj", 4, 2.0),
        ({"alpha_pattern": {r".*\.0\..*": 1.5}}, "model.layers.0.self_attn.q_proj", 4, 0.375),
        ({"rank_pattern": {"q_proj": 2, ".*": 8}}, "model.layers.0.self_attn.q_proj", 2, 4.0),
        ({"rank_pattern": {".*": 8, "q_proj": 2}}, "model.layers.0.self_attn.q_proj", 8, 1.0),
        ({"lora_alpha": 0}, "lm_head", 4, 0.0),
    ],
)
def test_rank_and_scaling(fields: dict[str, Any], module: str, rank: int, scaling: float) -> None:
    config = parse(config_text(**fields))
    assert config.rank_for(module) == rank
    assert config.scaling_for(module, rank) == scaling


SEGMENTS = st.sampled_from(["model", "layers", "0", "1", "self_attn", "q_proj", "k_proj"])


@settings(deadline=None)
@given(
    st.dictionaries(
        st.lists(SEGMENTS, min_size=1, max_size=3).map(r"\.".join)
        | st.sampled_from([".*q_proj", "^model.*", r"layers\.\d\..*"]),
        st.integers(1, 64),
        max_size=5,
    ),
    st.lists(SEGMENTS, min_size=1, max_size=5).map(".".join),
)
def test_the_first_matching_key_wins_as_in_peft(patterns: dict[str, int], module: str) -> None:
    config = parse(config_text(rank_pattern=patterns))
    wanted = next(
        (rank for key, rank in patterns.items() if re.match(rf"(.*\.)?({key})$", module)), 4
    )
    assert config.rank_for(module) == wanted


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


@settings(deadline=None, max_examples=300)
@given(st.dictionaries(st.sampled_from(sorted(json.loads(config_text()))), JSON))
def test_odd_values_raise_only_our_error(fields: dict[str, Any]) -> None:
    found = outcome(config_text(**fields))
    assert isinstance(found, AdapterConfig) or found.isprintable()


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_odd_bytes_raise_only_our_error(text: bytes) -> None:
    found = outcome(text)
    assert isinstance(found, AdapterConfig) or found.isprintable()


def outcome(text: bytes) -> AdapterConfig | str:
    try:
        return parse(text)
    except AdapterRejected as refused:
        return str(refused)
