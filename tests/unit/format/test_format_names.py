"""Names that trainers write differ from the engine's; each difference has one right reading."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from format_builders import PREFIX, config_text, pair, source
from format_cases import canonical_data, deltas, plan, profile
from lorafleet.errors import BaseModelMismatch, InvalidAdapter, RankTooHigh
from lorafleet.profile import EngineProfile, LoraModule

Q0, V1 = "model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.v_proj"
DENSE = replace(profile("qwen3-dense"), dtype="float32")
GOOD = pair(Q0, 4, 256, 256) | pair(V1, 4, 256, 128)


def renamed(old: str, new: str) -> dict[str, Any]:
    return {name.replace(old, new): array for name, array in GOOD.items()}


def refusal(tensors: dict[str, Any], engine: EngineProfile = DENSE, **config: Any) -> str:
    with pytest.raises(InvalidAdapter) as refused:
        plan(source(tensors, config_text(**config)), engine)
    return str(refused.value).removeprefix("adapter team-a/sql: ")


@pytest.mark.parametrize(
    ("tensors", "line"),
    [
        (renamed(PREFIX, f"_orig_mod.{PREFIX}"), "prefix removed: _orig_mod. (4 keys)"),
        (renamed(PREFIX, f"{PREFIX}_orig_mod."), "prefix removed: _orig_mod. (4 keys)"),
        (renamed(PREFIX, f"module.{PREFIX}"), "prefix removed: module. (4 keys)"),
        (renamed(PREFIX, f"{PREFIX}module."), "prefix removed: module. (4 keys)"),
        (renamed(PREFIX, f"module._orig_mod.{PREFIX}"), "prefix removed: _orig_mod. (4 keys)"),
        (renamed("layers.0.", "layers.0._fsdp_wrapped_module."), "_fsdp_wrapped_module. (2 keys)"),
        (
            renamed("self_attn.", "self_attn._checkpoint_wrapped_module._orig_mod."),
            "_checkpoint_wrapped_module. (4 keys)",
        ),
        (renamed("lora_A.", "lora_A._orig_mod."), "prefix removed: _orig_mod. (2 keys)"),
        (renamed(".weight", ".default.weight"), "lora_A.default.weight -> lora_A.weight (4 keys)"),
        (renamed(".weight", ".sql-v2"), "lora_A.sql-v2.weight -> lora_A.weight (4 keys)"),
        (renamed("model.layers", "layers"), "layers.N -> model.layers.N (2 modules)"),
        (
            renamed(f"{PREFIX}model", f"{PREFIX}model.language_model"),
            "model.language_model.layers.N -> model.layers.N (2 modules)",
        ),
        (
            renamed(f"{PREFIX}model", f"{PREFIX}language_model.model"),
            "language_model.model.layers.N -> model.layers.N (2 modules)",
        ),
    ],
)
def test_a_renamed_adapter_is_the_same_adapter(tensors: dict[str, Any], line: str) -> None:
    found, wanted = (source(some, config_text()) for some in (tensors, GOOD))
    layout = plan(found, DENSE)
    assert any(line in said for said in layout.normalized), layout.normalized
    good = plan(wanted, DENSE)
    assert layout.modules == good.modules
    assert canonical_data(found, layout) == canonical_data(wanted, good)


@pytest.mark.parametrize("drop", [PREFIX, "module."])
def test_without_pefts_prefix_nothing_is_said(drop: str) -> None:
    layout = plan(source(renamed(drop, ""), config_text()), DENSE)
    assert layout.normalized == ()
    assert set(layout.modules) == {Q0, V1}


@pytest.mark.parametrize("root", ["model.language_model.", "language_model.model."])
def test_a_text_adapter_on_a_multimodal_engine(root: str) -> None:
    modules = tuple(replace(m, name=m.name.replace("model.", root, 1)) for m in DENSE.modules)
    engine = replace(DENSE, modules=modules)
    layout = plan(source(GOOD, config_text()), engine)
    assert set(layout.modules) == {name.replace("model.", root, 1) for name in (Q0, V1)}
    assert f"model.layers.N -> {root}layers.N (2 modules)" in layout.normalized


def test_two_possible_roots_are_refused() -> None:
    twice = [replace(m, name=f"language_model.{m.name}") for m in DENSE.modules]
    engine = replace(DENSE, modules=DENSE.modules + tuple(twice))
    message = refusal(renamed("model.layers", "layers"), engine)
    name = "layers.0.self_attn.q_proj"
    assert message == (
        f"{name} may be model.{name} or language_model.model.{name}: the engine has both"
    )


def test_two_adapters_in_one_file_need_a_choice() -> None:
    other = {name: array + 1 for name, array in GOOD.items()}
    both = {name.replace(".weight", ".default.weight"): array for name, array in GOOD.items()}
    both |= {name.replace(".weight", ".reference.weight"): array for name, array in other.items()}
    assert refusal(both) == "more than one adapter in one file (default, reference)"
    picked = source(both, config_text())
    layout = plan(picked, DENSE, adapter_name="reference")
    wanted = source(other, config_text())
    assert canonical_data(picked, layout) == canonical_data(wanted, plan(wanted, DENSE))


def test_an_adapter_that_the_file_does_not_hold_is_named_beside_those_it_holds() -> None:
    one = {name.replace(".weight", ".default.weight"): array for name, array in GOOD.items()}
    with pytest.raises(InvalidAdapter) as caught:
        plan(source(one, config_text()), DENSE, adapter_name="reference")
    assert str(caught.value).endswith("no adapter reference in the file (it holds default)")


TOWER = pair("model.visual.blocks.0.attn.qkv", 4, 32, 96)


def test_a_tower_is_left_out_when_asked_and_counted() -> None:
    both = source(GOOD | TOWER, config_text())
    layout = plan(both, DENSE, drop_unmatched="tower")
    wanted = source(GOOD, config_text())
    assert canonical_data(both, layout) == canonical_data(wanted, plan(wanted, DENSE))
    assert layout.normalized == ("dropped 2 tensors of visual",)
    assert plan(wanted, DENSE, drop_unmatched="tower").normalized == ()
    silent = replace(DENSE, modules=())
    assert set(plan(both, silent).modules) == {Q0, V1, "model.visual.blocks.0.attn.qkv"}
    unknown = plan(both, silent, drop_unmatched="tower")
    assert set(unknown.modules) == {Q0, V1}
    assert unknown.normalized == ("dropped 2 tensors of visual",)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (
            TOWER,
            "no LoRA tensors match the engine: 1 of 1 modules do not exist in the engine "
            "(first: model.visual.blocks.0.attn.qkv)",
        ),
        (
            GOOD | TOWER | pair("model.layers.0.self_attn.kv_proj", 4, 256, 256),
            "1 of 3 modules do not exist in the engine (first: model.layers.0.self_attn.kv_proj)",
        ),
    ],
)
def test_only_a_tower_is_left_out_and_never_everything(
    tensors: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidAdapter) as caught:
        plan(source(tensors, config_text()), DENSE, drop_unmatched="tower")
    assert message in str(caught.value)


def test_what_may_be_left_out_is_known() -> None:
    with pytest.raises(InvalidAdapter, match="dropUnmatched all is not tower"):
        plan(source(GOOD, config_text()), DENSE, drop_unmatched="all")


@pytest.mark.parametrize(
    ("extra", "drop", "message"),
    [
        ({}, "lora_B", f"{Q0} has lora_A but no lora_B"),
        ({}, "lora_A", f"{Q0} has lora_B but no lora_A"),
        (renamed(PREFIX, ""), "-", f"two tensors for {Q0} (lora_A)"),
        (renamed("model.layers", "layers"), "-", f"two tensors for {Q0}"),
        (
            pair("model.layers.2.self_attn.q_proj", 4, 256, 256),
            "-",
            "model.layers.2.self_attn.q_proj is not in the engine (2 layers)",
        ),
        (
            pair("model.visual.blocks.0.attn.qkv", 4, 32, 96),
            "-",
            "model.visual.blocks.0.attn.qkv is not a LoRA module of the engine; the adapter was "
            "trained on the multimodal wrapper (set spec.dropUnmatched: tower to drop 2 tensors)",
        ),
        (
            pair("model.layers.0.self_attn.kv_proj", 4, 256, 256),
            "-",
            "1 of 3 modules do not exist in the engine (first: model.layers.0.self_attn.kv_proj)",
        ),
        (
            {f"{PREFIX}{Q0}.lora_magnitude_vector": np.zeros(256)},
            "-",
            f"DoRA is not supported ({Q0}.lora_magnitude_vector)",
        ),
        (
            {f"{PREFIX}{Q0}.lora_magnitude_vector.default.weight": np.zeros(256)},
            "-",
            "DoRA is not supported",
        ),
        ({f"{PREFIX}{Q0}.lora_B.bias": np.zeros(256)}, "-", "lora_bias is not supported"),
        ({f"{PREFIX}{Q0}.lora_B.default.bias": np.zeros(256)}, "-", "lora_bias is not supported"),
        ({f"{PREFIX}{Q0}.base_layer.bias": np.zeros(256)}, "-", "bias is not supported"),
        (
            {f"{PREFIX}{name}.base_layer.weight": np.zeros((8, 256)) for name in (Q0, V1)},
            "-",
            "base-model weights in the adapter (base_layer.weight): 2 tensors",
        ),
        (
            {
                f"{PREFIX}lm_head.weight": np.zeros((512, 256)),
                f"{PREFIX}model.embed_tokens.base_layer.weight": np.zeros((512, 256)),
            },
            "-",
            "full weights for embed_tokens, lm_head are in the file; "
            "retrain with LoRA on them or merge",
        ),
        (
            {f"{PREFIX}lm_head.modules_to_save.default.weight": np.zeros((512, 256))},
            "-",
            "full weights for lm_head are in the file",
        ),
        (
            {f"{PREFIX}model.embed_tokens.token_adapter.trainable_tokens_delta": np.zeros((2, 4))},
            "-",
            "trainable_tokens_delta is not a LoRA tensor",
        ),
        (
            {f"{PREFIX}{Q0}.lora_A.a.b.weight": np.zeros((4, 256))},
            "-",
            "lora_A.a.b.weight is not a LoRA tensor",
        ),
    ],
)
def test_what_does_not_belong_in_the_file(extra: dict[str, Any], drop: str, message: str) -> None:
    kept = {name: array for name, array in GOOD.items() if drop not in name or V1 in name}
    assert message in refusal({**kept, **extra})


def test_an_adapter_for_nothing_in_the_engine() -> None:
    message = refusal(pair("model.layers.0.self_attn.wq", 4, 256, 256))
    assert message.startswith(
        "no LoRA tensors match the engine: 1 of 1 modules do not exist in the engine "
        "(first: model.layers.0.self_attn.wq"
    )


@pytest.mark.parametrize(
    ("name", "wide", "out", "message"),
    [
        (Q0, 128, 256, "lora_A has shape [4, 128], expected [4, 256] for base tiny/qwen3-dense"),
        (Q0, 256, 128, "lora_B has shape [128, 4], expected [256, 4] for base tiny/qwen3-dense"),
        ("lm_head", 256, 520, "lm_head LoRA has 520 rows, the base vocabulary size (512)"),
        ("lm_head", 256, 500, "lora_B has shape [500, 4], expected [512, 4]"),
    ],
)
def test_shapes_are_exact(name: str, wide: int, out: int, message: str) -> None:
    assert message in refusal(pair(name, 4, wide, out))


def test_factors_of_different_rank_are_refused() -> None:
    tensors = {**GOOD, f"{PREFIX}{Q0}.lora_B.weight": np.zeros((256, 8))}
    assert refusal(tensors) == (
        f"{Q0}: lora_B has shape [256, 8], expected [256, 4] for base tiny/qwen3-dense"
    )


def test_a_config_that_lies_about_the_rank_is_refused() -> None:
    assert refusal(pair(Q0, 8, 256, 256)) == (
        f"adapter_config.json declares rank 4 but {Q0}.lora_A has 8 rows"
    )


def test_flat_tensors_are_refused() -> None:
    tensors = {**GOOD, f"{PREFIX}{Q0}.lora_A.weight": np.zeros(1024)}
    assert refusal(tensors) == f"{Q0}: lora_A has shape [1024], expected two dimensions"


def test_the_highest_rank_counts() -> None:
    engine = replace(DENSE, max_lora_rank=8)
    tensors = GOOD | pair("lm_head", 16, 256, 512)
    with pytest.raises(RankTooHigh, match="LoRA rank 16 is greater than max_lora_rank 8"):
        plan(source(tensors, config_text(rank_pattern={"lm_head": 16})), engine)
    accepted = plan(source(GOOD, config_text(rank_pattern={"o_proj": 16})), engine)
    assert accepted.rank == 4


@pytest.mark.parametrize(
    ("base", "engine_names", "note"),
    [
        ("tiny/qwen3-dense", ["tiny/qwen3-dense"], ""),
        ("Other/QWEN3-Dense/", ["tiny/qwen3-dense"], ""),
        ("", ["tiny/qwen3-dense"], ""),
        ("org/m", ["alias", "/models/m"], ""),
        ("/cache/models--tiny--qwen3-dense/snapshots/0123", ["tiny/qwen3-dense"], ""),
        ("/mnt/ckpt/step-7", ["tiny/qwen3-dense"], "adapter was trained for /mnt/ckpt/step-7"),
        ("./out", ["tiny/qwen3-dense"], "adapter was trained for ./out"),
        ("org/other", ["/models/m"], "adapter was trained for org/other, engine serves /models/m"),
    ],
)
def test_a_base_model_that_may_be_the_same(base: str, engine_names: list[str], note: str) -> None:
    first, *more = engine_names
    engine = replace(DENSE, base_model=first, base_model_aliases=tuple(more))
    notes = plan(source(GOOD, config_text(base=base)), engine).notes
    assert (note in notes[0]) if note else notes == ()


def test_another_base_model_needs_a_word() -> None:
    adapter = source(GOOD, config_text(base="other-org/some-other-7b"))
    with pytest.raises(BaseModelMismatch) as refused:
        plan(adapter, DENSE)
    assert str(refused.value) == (
        "adapter team-a/sql: adapter was trained for other-org/some-other-7b, engine serves "
        "tiny/qwen3-dense (set spec.allowBaseMismatch: true to load it)"
    )
    notes = plan(adapter, DENSE, allow_base_mismatch=True).notes
    assert notes == (
        "adapter was trained for other-org/some-other-7b, engine serves tiny/qwen3-dense",
    )


def test_quantised_factors_are_refused() -> None:
    adapter = source(GOOD, config_text())
    entries = tuple(
        entry._replace(dtype="I32") if "q_proj" in entry.name else entry
        for entry in adapter.header.tensors
    )
    odd = replace(adapter, header=replace(adapter.header, tensors=entries))
    with pytest.raises(InvalidAdapter, match="lora_A has dtype I32, expected one of BF16, F16"):
        plan(odd, DENSE)


def test_an_unknown_engine_takes_names_as_they_are() -> None:
    engine = EngineProfile(base_model="tiny/qwen3-dense")
    tensors: dict[str, Any] = GOOD | {
        f"{PREFIX}model.embed_tokens.lora_embedding_A": np.ones((4, 520)),
        f"{PREFIX}model.embed_tokens.lora_embedding_B": np.ones((256, 4)),
    }
    adapter = source(tensors, config_text())
    layout = plan(adapter, engine)
    found = deltas(layout, canonical_data(adapter, layout))
    known = plan(source(GOOD, config_text()), DENSE)
    wanted = deltas(known, canonical_data(source(GOOD, config_text()), known))
    assert {name: found[name] for name in wanted} == wanted
    assert found["model.embed_tokens"]["shape"] == [256, 520]
    assert b"model.embed_tokens.lora_embedding_A" in layout.image_header
    assert layout.dtype == "float32"
    assert layout.notes == ("the engine's modules are unknown: names and shapes were not checked",)


def test_names_without_modules_stay_small() -> None:
    engine = EngineProfile(base_model="tiny/qwen3-moe")
    tensors = pair("model.layers.0.mlp.experts.99999999.gate_proj", 1, 2, 2)
    assert "experts.99999999 is above 4095" in refusal(tensors, engine, r=1)
    assert LoraModule("x", 1, 1).num_experts == 0
