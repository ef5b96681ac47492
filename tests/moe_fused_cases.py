"""Experts that trainers write as few tensors: PEFT's flat pairs, and stacks of three dimensions."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from moe_builders import (
    GATE_UP,
    HIDDEN,
    W_NAMES,
    Array,
    factors,
    flat,
    fused,
    keyed,
    one_by_one,
    stacked,
    updates,
)
from moe_case import EXPERTS, LAYER, SECOND, MoeCase, Q, linear, renamed


def _flat() -> dict[str, MoeCase]:
    whole = factors()
    both, rank3, down = fused(whole), fused(factors(3)), factors(names=["down_proj"])
    gate_up = fused({name: whole[name] for name in GATE_UP})
    two = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    names = ("gate_up_proj", "down_proj")

    def tensors(parts: Any, order: tuple[str, ...] = names, **how: Any) -> dict[str, Array]:
        found: dict[str, Array] = {}
        suffix = ".base_layer" if len(parts) == 2 else ""
        for name in order:
            if name in parts:
                found |= keyed(EXPERTS + suffix, *flat(parts[name], **how))
                suffix = ""
        return found

    def case(parts: Any, wanted: Any, transposed: bool = False, **config: Any) -> MoeCase:
        return MoeCase(
            tensors(parts, transposed=transposed),
            updates(EXPERTS, wanted, 4.0),
            config={"target_parameters": two, **config},
            normalized="per-expert names",
        )

    only_up, only_down = {"target_parameters": two[:1]}, {"target_parameters": two[1:]}
    found = {
        f"flat, both, PEFT {version}": case(both, whole, turned, peft_version=version)
        for version, turned in [
            ("0.17.1", True),
            ("0.18.0", True),
            ("0.18.1", True),
            ("0.19.0", True),
            ("0.19.0", False),
            ("0.19.1", False),
            ("0.21.2", False),
            ("1.0.0", False),
        ]
    }
    # The shapes of down_proj tell, whatever the config says.
    found |= {
        "flat, both, transposed, no version": case(both, whole, True, peft_version=None),
        "flat, both, no version": case(both, whole, peft_version=None),
        "flat, both, transposed, the version says otherwise": case(
            both, whole, True, peft_version="0.21.2"
        ),
        "flat, both, the version says otherwise": case(both, whole, peft_version="0.18.0"),
        "flat, only down": case(down, down, **only_down),
        "flat, only down, transposed": case(down, down, True, peft_version="0.18.1", **only_down),
        "flat, only down, nothing said": case(down, down, target_parameters=None),
        "flat, only down, a long name": case(
            down, down, target_parameters=[f"{EXPERTS}.down_proj"]
        ),
        "flat, other rank": MoeCase(
            tensors(rank3), updates(EXPERTS, factors(3), 8 / 3), config={"r": 3}
        ),
        "flat, rsLoRA": MoeCase(
            tensors(both), updates(EXPERTS, whole, 8 / math.sqrt(2)), config={"use_rslora": True}
        ),
        "flat, the wrappers the other way round": MoeCase(
            tensors(both, names[::-1]), updates(EXPERTS, whole, 4.0)
        ),
        "flat, beside attention and router": MoeCase(
            tensors(both)
            | linear(Q, 2, HIDDEN, HIDDEN).tensors
            | linear(f"{LAYER}.gate", 2, HIDDEN, 8).tensors,
            updates(EXPERTS, whole, 4.0)
            | linear(Q, 2, HIDDEN, HIDDEN).updates
            | linear(f"{LAYER}.gate", 2, HIDDEN, 8).updates,
        ),
        "flat, a rank for each parameter": MoeCase(
            tensors({"gate_up_proj": both["gate_up_proj"], "down_proj": rank3["down_proj"]}),
            updates(EXPERTS, {name: whole[name] for name in GATE_UP}, 4.0)
            | updates(EXPERTS, {"down_proj": rank3["down_proj"]}, 6.0),
            config={
                "rank_pattern": {r"experts\.down_proj": 3},
                "alpha_pattern": {r".*down_proj": 18},
            },
        ),
        "flat, of one layer only": MoeCase(
            renamed(tensors(both), "layers.0", "layers.1"), updates(SECOND, whole, 4.0)
        ),
    }
    # gate_up_proj of [64, 64] alone: only the version tells.
    for version, turned in [
        ("0.17.0", True),
        ("0.18.0", True),
        ("0.18.1", True),
        ("0.18.0.dev0", True),
        ("0.19.1", False),
        ("0.19.2.dev0@9c3e2f1", False),
        ("0.20.0", False),
        ("0.21.2", False),
    ]:
        found[f"flat, only gate_up, PEFT {version}"] = case(
            gate_up, {n: whole[n] for n in GATE_UP}, turned, peft_version=version, **only_up
        )
    unknown = (
        "cannot tell the orientation of experts.gate_up_proj (hidden == 2*moe_intermediate and"
    )
    for said, told in [
        (None, "no peft_version)"),
        ("", "no peft_version)"),
        ("0.19.0", "peft_version 0.19.0)"),
        ("0.18.1.dev0", "peft_version 0.18.1.dev0)"),
        ("0.19.1.dev0@abc", "peft_version 0.19.1.dev0@abc)"),
        ("abc123", "peft_version abc123)"),
        ("2026-11", "peft_version 2026-11)"),
    ]:
        found[f"flat, only gate_up, PEFT {said!r}"] = MoeCase(
            tensors(gate_up), error=f"{unknown} {told}", config={"peft_version": said, **only_up}
        )
    half = tensors({"down_proj": {e: down["down_proj"][e] for e in range(4)}})
    found |= {
        "flat, four experts of rank 4": MoeCase(
            half, error="adapter_config.json declares rank 2 but"
        ),
        "flat, only the inner wrapper": MoeCase(
            renamed(tensors(down), "experts.lora", "experts.base_layer.lora"),
            error=f"{EXPERTS}.base_layer has no experts pair beside it",
        ),
        "flat and one by one": MoeCase(
            tensors(both) | one_by_one(EXPERTS, factors(names=["up_proj"], experts=[3])),
            error=f"two tensors for {EXPERTS}.3.up_proj",
        ),
    }
    return found


def _stacked() -> dict[str, MoeCase]:
    whole = factors()
    both = fused(whole)
    stack = stacked(EXPERTS, both)
    wanted = updates(EXPERTS, whole, 4.0)
    ws = {W_NAMES[name]: every for name, every in whole.items()}
    head = f"base_model.model.{EXPERTS}"

    def shared(dimensions: int, names: tuple[str, str, str]) -> MoeCase:
        gate, up, down = names
        a, b = whole["gate_proj"][0][0], whole["down_proj"][0][1]
        one_a = {n: {e: (a, every[e][1]) for e in every} for n, every in whole.items()}
        one_a["down_proj"] = {e: (x, b) for e, (x, _) in whole["down_proj"].items()}
        tensors = stacked(EXPERTS, dict(zip(names, one_a.values(), strict=True)))
        for key in (f"{gate}.lora_A", f"{up}.lora_A", f"{down}.lora_B"):
            key = f"{head}.{key}.weight"
            tensors[key] = tensors[key][:1] if dimensions == 3 else tensors[key][0]
        return MoeCase(
            tensors, updates(EXPERTS, one_a, 4.0), normalized="per-expert names (factor repeated)"
        )

    def wrapped(tensors: dict[str, Array]) -> dict[str, Array]:
        tensors = renamed(tensors, "experts.gate_up_proj", "experts.base_layer")
        return renamed(tensors, "experts.down_proj", "experts")

    def innermost(tensors: dict[str, Array]) -> dict[str, Array]:
        return {k: v.transpose(1, 2, 0) if "lora_B" in k else v for k, v in tensors.items()}

    two = {"target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}
    a, b = whole["gate_proj"][0][0], {e: both["gate_up_proj"][e][1] for e in range(8)}
    outer = {"gate_up_proj": {e: (a, b[e]) for e in b}}
    outer_tensors = stacked(EXPERTS, outer)
    key = f"{head}.gate_up_proj.lora_A.weight"
    outer_tensors[key] = outer_tensors[key][:1]
    return {
        "stacks of gate_up and down": MoeCase(stack, wanted, normalized="per-expert names"),
        "stacks, turned": MoeCase(stacked(EXPERTS, both, turned=True), wanted),
        "stacks under the names of wrappers": MoeCase(wrapped(stack), wanted, config=two),
        "stacks under the names of wrappers, the expert innermost": MoeCase(
            innermost(wrapped(stack)), wanted, normalized="per-expert names", config=two
        ),
        "a stack of down under the name of a wrapper": MoeCase(
            innermost(wrapped(stacked(EXPERTS, {"down_proj": both["down_proj"]}))),
            updates(EXPERTS, {"down_proj": whole["down_proj"]}, 4.0),
        ),
        "a shared outer factor under the names of wrappers": MoeCase(
            wrapped(outer_tensors | stacked(EXPERTS, {"down_proj": both["down_proj"]})),
            updates(EXPERTS, {n: {e: (a, whole[n][e][1]) for e in b} for n in GATE_UP}, 4.0)
            | updates(EXPERTS, {"down_proj": whole["down_proj"]}, 4.0),
            normalized="per-expert names (factor repeated)",
        ),
        "stacks of four experts under the names of wrappers": MoeCase(
            {key: array[:4] for key, array in wrapped(stack).items()},
            error=f"{EXPERTS}.base_layer: lora_A has 4 experts, expected 8",
        ),
        "stacks of four experts, the expert innermost": MoeCase(
            innermost({key: array[:4] for key, array in wrapped(stack).items()}),
            error=f"{EXPERTS}.base_layer: lora_A has 4 experts, expected 8",
        ),
        "stacks of three projections": MoeCase(stacked(EXPERTS, whole), wanted),
        "stacks of w1, w2, w3": MoeCase(stacked(EXPERTS, ws), wanted),
        "a stack of down only": MoeCase(
            stacked(EXPERTS, {"down_proj": both["down_proj"]}),
            updates(EXPERTS, {"down_proj": whole["down_proj"]}, 4.0),
            normalized="zeros for all experts of",
        ),
        "a stack of gate_up only": MoeCase(
            stacked(EXPERTS, {"gate_up_proj": both["gate_up_proj"]}),
            updates(EXPERTS, {name: whole[name] for name in GATE_UP}, 4.0),
        ),
        "stacks with an adapter's name": MoeCase(
            renamed(stack, ".weight", ".default.weight"), wanted, normalized="lora_A.default"
        ),
        "stacks without .weight": MoeCase(renamed(stack, ".weight", ""), wanted),
        "stacks, rsLoRA and patterns": MoeCase(
            stack,
            updates(EXPERTS, whole, lambda _, n: (32 if n == "down_proj" else 8) / math.sqrt(2)),
            config={"use_rslora": True, "alpha_pattern": {"experts.down_proj": 32}},
        ),
        "shared outer factors, w names": shared(3, ("w1", "w3", "w2")),
        "shared outer factors": shared(3, ("gate_proj", "up_proj", "down_proj")),
        "shared outer factors of two dimensions": shared(2, ("w1", "w3", "w2")),
        "a shared outer factor of gate_up": MoeCase(
            outer_tensors,
            updates(EXPERTS, {n: {e: (a, whole[n][e][1]) for e in b} for n in GATE_UP}, 4.0),
        ),
        "shared outer factors for an engine of such": replace(
            shared(3, ("w1", "w3", "w2")), engine="shared"
        ),
        "experts of their own for an engine of shared ones": MoeCase(
            stack,
            error=f"{EXPERTS}.gate_proj: lora_A differs between experts, but the engine runs with "
            "enable_moe_shared_loras",
            engine="shared",
        ),
        "stacks of four experts": MoeCase(
            {name: array[:4] for name, array in stack.items()},
            error=f"{EXPERTS}.gate_up_proj: lora_A has 4 experts, expected 8",
        ),
        "stacks of sixteen experts": MoeCase(
            {name: np.concatenate([array, array]) for name, array in stack.items()},
            error=f"{EXPERTS}.gate_up_proj: lora_A has 16 experts, expected 8",
        ),
        "a stack's A and B disagree": MoeCase(
            {n: a[:4] if "lora_B" in n else a for n, a in stack.items()},
            error=f"{EXPERTS}.gate_up_proj: lora_B has 4 experts, expected 8",
        ),
        "stacks and one by one": MoeCase(
            stack | one_by_one(EXPERTS, factors(names=["down_proj"], experts=[2])),
            error=f"two tensors for {EXPERTS}.2.down_proj",
        ),
        "stacks and flat": MoeCase(
            stack | keyed(EXPERTS, *flat(whole["down_proj"])),
            error=f"two tensors for {EXPERTS}.0.down_proj",
        ),
        "a stack of four dimensions": MoeCase(
            {name: array[None] for name, array in stack.items()},
            error="expected two or three dimensions",
        ),
        "a stack with the sides exchanged": MoeCase(
            stacked(
                EXPERTS, {"down_proj": {e: (b.T, a.T) for e, (a, b) in whole["down_proj"].items()}}
            ),
            error=f"{EXPERTS}.0.down_proj: lora_A has shape [2, 64], expected [2, 32]",
        ),
    }


CASES: dict[str, MoeCase] = {**_flat(), **_stacked()}
