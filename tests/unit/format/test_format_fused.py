"""Fused layouts become separate modules with the right values: shapes alone prove nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from format_builders import PREFIX, config_text, pair, source
from format_cases import canonical_data, deltas, numbers, plan, profile
from lorafleet.errors import InvalidAdapter
from lorafleet.profile import EngineProfile, LoraModule, ModuleKind

DENSE = replace(profile("qwen3-dense"), dtype="float32")
MOE = replace(profile("qwen3-moe"), dtype="float32")
UNKNOWN = EngineProfile(base_model="tiny/qwen3-moe")
EXPERTS = "model.layers.0.mlp.experts"
E, HIDDEN, INNER = 8, 64, 32


def updates(
    tensors: dict[str, Any], engine: EngineProfile = MOE, **config: Any
) -> dict[str, dict[str, Any]]:
    base = {"base": engine.base_model, **config}
    adapter = source(
        {name: array.astype("float32") for name, array in tensors.items()}, config_text(**base)
    )
    layout = plan(adapter, engine)
    return deltas(layout, canonical_data(adapter, layout, 333))


def assert_updates(found: dict[str, Any], wanted: dict[str, tuple[Any, Any, float]]) -> None:
    """Compare with the updates of (A, B, scaling); anything else must be zero."""
    for name, (a, b, scaling) in wanted.items():
        expected = numbers(np.float32(a).astype(float), np.float32(b).astype(float), scaling)
        got = {key: found[name][key] for key in ("fro", "sum", "probe")}
        assert got == pytest.approx({key: expected[key] for key in got}, rel=1e-6, abs=1e-6), name
        assert found[name]["shape"] == expected["shape"]
    assert {name for name, entry in found.items() if entry["fro"]} == set(wanted)


def refusal(tensors: dict[str, Any], engine: EngineProfile = MOE, **config: Any) -> str:
    with pytest.raises(InvalidAdapter) as refused:
        updates(tensors, engine, **config)
    return str(refused.value).removeprefix("adapter team-a/sql: ")


def test_qkv_proj_gives_each_module_its_rows() -> None:
    name = "model.layers.1.self_attn.qkv_proj"
    tensors = pair(name, 4, 256, 512)
    a, b = tensors.values()
    head = "model.layers.1.self_attn"
    wanted = {
        f"{head}.q_proj": (a, b[:256], 2.0),
        f"{head}.k_proj": (a, b[256:384], 2.0),
        f"{head}.v_proj": (a, b[384:], 2.0),
    }
    assert_updates(updates(tensors, DENSE), wanted)
    assert_updates(
        updates(tensors, DENSE, rank_pattern={"qkv_proj": 4}, alpha_pattern={"qkv_proj": 12}),
        {key: (a, b, 3.0) for key, (a, b, _) in wanted.items()},
    )


def test_gate_up_proj_is_gate_then_up() -> None:
    tensors = pair("model.layers.0.mlp.gate_up_proj", 4, 256, 1024)
    a, b = tensors.values()
    head = "model.layers.0.mlp"
    wanted = {f"{head}.gate_proj": (a, b[:512], 2.0), f"{head}.up_proj": (a, b[512:], 2.0)}
    assert_updates(updates(tensors, DENSE), wanted)


def test_fused_rows_must_fit_the_engine() -> None:
    assert refusal(pair("model.layers.1.self_attn.qkv_proj", 4, 256, 768), DENSE) == (
        "model.layers.1.self_attn.qkv_proj: lora_B has 768 rows, expected 512 "
        "(q_proj 256 + k_proj 128 + v_proj 128)"
    )


def test_a_fused_module_that_the_engine_has_is_not_split() -> None:
    name = "model.layers.1.self_attn.qkv_proj"
    engine = replace(DENSE, modules=(LoraModule(name, 256, 512),))
    tensors = pair(name, 4, 256, 512)
    assert_updates(updates(tensors, engine), {name: (*tensors.values(), 2.0)})


def test_a_module_beside_its_fused_form_is_a_duplicate() -> None:
    tensors = pair("model.layers.1.self_attn.qkv_proj", 4, 256, 512)
    tensors |= pair("model.layers.1.self_attn.k_proj", 4, 256, 128)
    assert refusal(tensors, DENSE) == "two tensors for model.layers.1.self_attn.k_proj"


def each_expert(rank: int, seed: int = 0) -> dict[str, list[tuple[Any, Any]]]:
    """Return random (A, B) of every expert for gate_proj, up_proj and down_proj."""
    random = np.random.default_rng(seed)
    sizes = {"gate_proj": (HIDDEN, INNER), "up_proj": (HIDDEN, INNER), "down_proj": (INNER, HIDDEN)}
    return {
        name: [
            (random.standard_normal((rank, wide)), random.standard_normal((out, rank)))
            for _ in range(E)
        ]
        for name, (wide, out) in sizes.items()
    }


def wanted_of(experts: dict[str, list[tuple[Any, Any]]], scaling: float) -> dict[str, Any]:
    return {
        f"{EXPERTS}.{e}.{name}": (a, b, scaling)
        for name, pairs in experts.items()
        for e, (a, b) in enumerate(pairs)
    }


def gate_up(experts: dict[str, list[tuple[Any, Any]]]) -> list[tuple[Any, Any]]:
    """Return (A, B) of the fused projection; gate and up share gate's A."""
    pairs = []
    for e, (a, gate_b) in enumerate(experts["gate_proj"]):
        up_b = experts["up_proj"][e][1]
        experts["up_proj"][e] = (a, up_b)
        pairs.append((a, np.concatenate([gate_b, up_b])))
    return pairs


def flat(pairs: list[tuple[Any, Any]], transposed: bool) -> tuple[Any, Any]:
    """Return PEFT's flat pair: A [experts*rank, in], B [out, rank*experts]."""
    if transposed:
        pairs = [(b.T, a.T) for a, b in pairs]
    a = np.concatenate([a for a, _ in pairs])
    b = np.stack([b for _, b in pairs], axis=-1)
    return a, b.reshape(b.shape[0], -1)


def flat_tensors(parts: dict[str, tuple[Any, Any]]) -> dict[str, Any]:
    return {
        f"{PREFIX}{EXPERTS}{suffix}.lora_{side}.weight": array
        for suffix, sides in parts.items()
        for side, array in zip("AB", sides, strict=True)
    }


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("engine", [MOE, UNKNOWN], ids=["known", "unknown"])
def test_target_parameters_in_both_orientations(
    rank: int, transposed: bool, engine: EngineProfile
) -> None:
    """down_proj's shapes tell the orientation of gate_up_proj, whatever peft_version says."""
    experts = each_expert(rank)
    fused = flat(gate_up(experts), transposed)
    tensors = flat_tensors({".base_layer": fused, "": flat(experts["down_proj"], transposed)})
    found = updates(tensors, engine, r=rank, alpha=2 * rank, peft_version="")
    assert_updates(found, wanted_of(experts, 2.0))


@pytest.mark.parametrize("transposed", [False, True])
def test_wrappers_the_other_way_round_are_told_by_shapes(transposed: bool) -> None:
    experts = each_expert(2)
    fused = flat(gate_up(experts), transposed)
    tensors = flat_tensors({"": fused, ".base_layer": flat(experts["down_proj"], transposed)})
    assert_updates(updates(tensors, r=2), wanted_of(experts, 4.0))


@pytest.mark.parametrize("parameter", ["gate_up_proj", "down_proj"])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_single_wrapper_is_told_by_target_parameters(parameter: str, transposed: bool) -> None:
    experts = each_expert(2)
    pairs = gate_up(experts) if parameter == "gate_up_proj" else experts["down_proj"]
    names = ["gate_proj", "up_proj"] if parameter == "gate_up_proj" else ["down_proj"]
    found = updates(
        flat_tensors({"": flat(pairs, transposed)}),
        r=2,
        target_parameters=[f"mlp.experts.{parameter}"],
        peft_version="0.18.0" if transposed else "0.19.1",
    )
    assert_updates(found, wanted_of({name: experts[name] for name in names}, 4.0))


def test_patterns_see_the_parameters_names() -> None:
    experts = each_expert(2)
    down = each_expert(1, seed=1)["down_proj"]
    tensors = flat_tensors({".base_layer": flat(gate_up(experts), False), "": flat(down, False)})
    found = updates(
        tensors,
        r=2,
        rank_pattern={"experts.down_proj": 1},
        alpha_pattern={r".*gate_up_proj": 6},
    )
    wanted = wanted_of({name: experts[name] for name in ("gate_proj", "up_proj")}, 3.0)
    assert_updates(found, wanted | wanted_of({"down_proj": down}, 8.0))


@pytest.mark.parametrize(
    ("version", "found"),
    [("", "no peft_version"), ("0.19.0", "peft_version 0.19.0"), ("0.16", "peft_version 0.16")],
)
def test_an_orientation_that_nothing_tells_is_refused(version: str, found: str) -> None:
    tensors = flat_tensors({"": flat(gate_up(each_expert(2)), False)})
    target = {"target_parameters": ["mlp.experts.gate_up_proj"], "peft_version": version}
    assert refusal(tensors, r=2, **target) == (
        "cannot tell the orientation of experts.gate_up_proj "
        f"(hidden == 2*moe_intermediate and {found})"
    )


@pytest.mark.parametrize(
    ("parts", "config", "message"),
    [
        ({".base_layer": ((16, 64), (64, 16))}, {}, "experts.base_layer has no experts pair"),
        ({"": ((16, 64), (64, 15))}, {}, "expected [experts*rank, in] and [out, rank*experts]"),
        ({"": ((12, 64), (64, 12))}, {}, "lora_A has 12 rows, expected a multiple of 8 experts"),
        (
            {".base_layer": ((16, 64), (64, 16)), "": ((16, 48), (64, 16))},
            {},
            f"{EXPERTS}: lora_A has shape [16, 48] and lora_B [64, 16], "
            "expected [16, 32] and [64, 16]",
        ),
        ({"": ((16, 48), (64, 16))}, {}, f"cannot tell which parameter {EXPERTS} adapts"),
        (
            {"": ((16, 32), (64, 16))},
            {"r": 4},
            f"declares rank 4 but {EXPERTS}.down_proj.lora_A has 2 rows",
        ),
    ],
)
def test_flat_experts_that_do_not_fit(
    parts: dict[str, Any], config: dict[str, Any], message: str
) -> None:
    tensors = flat_tensors({s: tuple(map(np.zeros, shapes)) for s, shapes in parts.items()})
    assert message in refusal(tensors, **{"r": 2, **config})


def stacks(parts: dict[str, list[tuple[Any, Any]]], turned: bool = False) -> dict[str, Any]:
    tensors = {}
    for name, pairs in parts.items():
        for side, factors in zip("AB", zip(*pairs, strict=True), strict=True):
            stack = np.stack(factors)
            key = f"{PREFIX}{EXPERTS}.{name}.lora_{side}.weight"
            tensors[key] = stack.transpose(0, 2, 1) if turned else stack
    return tensors


@pytest.mark.parametrize("engine", [MOE, UNKNOWN], ids=["known", "unknown"])
def test_stacks_of_fused_experts(engine: EngineProfile) -> None:
    experts = each_expert(2)
    tensors = stacks({"gate_up_proj": gate_up(experts), "down_proj": experts["down_proj"]})
    assert_updates(updates(tensors, engine, r=2), wanted_of(experts, 4.0))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    "names", [("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2")], ids=["proj", "w"]
)
def test_stacks_of_single_projections(names: tuple[str, ...], turned: bool) -> None:
    experts = each_expert(3)
    tensors = stacks(dict(zip(names, experts.values(), strict=True)), turned)
    assert_updates(updates(tensors, r=3, alpha=3), wanted_of(experts, 1.0))


@pytest.mark.parametrize("dimensions", [2, 3])
def test_a_factor_that_all_experts_share(dimensions: int) -> None:
    experts = each_expert(2)
    shared_a, shared_b = experts["gate_proj"][0][0], experts["down_proj"][0][1]
    experts["gate_proj"] = [(shared_a, b) for _, b in experts["gate_proj"]]
    experts["down_proj"] = [(a, shared_b) for a, _ in experts["down_proj"]]
    tensors = stacks({"w1": experts["gate_proj"], "w2": experts["down_proj"]})
    shape = (slice(0, 1),) if dimensions == 3 else (0,)
    for key in (f"{PREFIX}{EXPERTS}.w1.lora_A.weight", f"{PREFIX}{EXPERTS}.w2.lora_B.weight"):
        tensors[key] = tensors[key][shape]
    del experts["up_proj"]
    assert_updates(updates(tensors, r=2), wanted_of(experts, 4.0))


def test_a_wrong_number_of_experts_is_refused() -> None:
    experts = {name: pairs[:4] for name, pairs in each_expert(2).items()}
    assert refusal(stacks(experts), r=2) == (
        f"{EXPERTS}.gate_proj: lora_A has 4 experts, expected 8"
    )


@pytest.mark.parametrize("names", [("gate_proj", "down_proj"), ("w1", "w2")])
@pytest.mark.parametrize("engine", [MOE, UNKNOWN], ids=["known", "unknown"])
def test_experts_one_by_one(names: tuple[str, str], engine: EngineProfile) -> None:
    experts = each_expert(2)
    pairs = dict(zip(names, (experts["gate_proj"], experts["down_proj"]), strict=True))
    tensors = {
        f"{PREFIX}{EXPERTS}.{e}.{name}.lora_{side}.weight": array
        for name, every in pairs.items()
        for e, sides in enumerate(every)
        for side, array in zip("AB", sides, strict=True)
    }
    wanted = wanted_of({name: experts[name] for name in ("gate_proj", "down_proj")}, 4.0)
    if engine is UNKNOWN:
        wanted = wanted_of(pairs, 4.0)
    assert_updates(updates(tensors, engine, r=2), wanted)


def test_one_experts_fused_gate_up() -> None:
    tensors = pair(f"{EXPERTS}.5.gate_up_proj", 2, HIDDEN, 2 * INNER)
    a, b = tensors.values()
    wanted = {
        f"{EXPERTS}.5.gate_proj": (a, b[:INNER], 4.0),
        f"{EXPERTS}.5.up_proj": (a, b[INNER:], 4.0),
    }
    assert_updates(updates(tensors, r=2), wanted)


def test_experts_of_other_ranks_keep_their_own_scaling() -> None:
    low = pair(f"{EXPERTS}.1.down_proj", 1, INNER, HIDDEN)
    high = pair(f"{EXPERTS}.6.down_proj", 3, INNER, HIDDEN)
    found = updates(low | high, r=3, alpha=6, rank_pattern={r"experts\.1\..*": 1})
    wanted = {
        f"{EXPERTS}.1.down_proj": (*low.values(), 6.0),
        f"{EXPERTS}.6.down_proj": (*high.values(), 2.0),
    }
    assert_updates(found, wanted)
    assert {entry["rank"] for entry in found.values()} == {3}


def test_missing_projections_and_experts_are_zeros_and_said() -> None:
    adapter = source(
        pair(f"{EXPERTS}.2.down_proj", 4, INNER, HIDDEN), config_text(base="tiny/qwen3-moe")
    )
    layout = plan(adapter, MOE)
    assert set(layout.modules) == {f"{EXPERTS}.{n}" for n in ("gate_proj", "up_proj", "down_proj")}
    assert layout.normalized == (
        f"zeros for experts 0, 1, 3, 4, 5, 6, 7 of {EXPERTS}.down_proj",
        f"zeros for all experts of {EXPERTS}.gate_proj, {EXPERTS}.up_proj",
    )


def test_experts_outside_the_engine_are_refused() -> None:
    assert refusal(pair(f"{EXPERTS}.8.down_proj", 4, INNER, HIDDEN)) == (
        f"{EXPERTS}.8 is not in the engine (8 experts)"
    )


def test_a_fused_engine_takes_the_fused_parameter() -> None:
    modules = (
        LoraModule(f"{EXPERTS}.gate_up_proj", HIDDEN, 2 * INNER, ModuleKind.EXPERTS, E),
        LoraModule(f"{EXPERTS}.down_proj", INNER, HIDDEN, ModuleKind.EXPERTS, E),
    )
    engine = replace(MOE, modules=modules)
    experts = each_expert(2)
    fused, down = gate_up(experts), experts["down_proj"]
    wanted = wanted_of({"gate_up_proj": fused, "down_proj": down}, 4.0)
    parts = {".base_layer": flat(fused, False), "": flat(down, False)}
    assert_updates(updates(flat_tensors(parts), engine, r=2), wanted)
    stacked = stacks({"gate_up_proj": fused, "down_proj": down})
    assert_updates(updates(stacked, engine, r=2), wanted)
