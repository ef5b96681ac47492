"""Adapters of experts as trainers write them, beside the handed cases: what each must give.

The wanted updates are made from the factors themselves, never from what any reader made of them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from moe_builders import (
    GATE_UP,
    HIDDEN,
    INNER,
    W_NAMES,
    factors,
    flat,
    fused,
    keyed,
    one_by_one,
    updates,
)
from moe_case import EXPERTS, LAYER, SECOND, MoeCase, Q, linear, renamed
from moe_fused_cases import CASES as FUSED


def _partial() -> dict[str, MoeCase]:
    def case(said: str, *, module: str = EXPERTS, **which: Any) -> MoeCase:
        parts = factors(**which)
        return MoeCase(one_by_one(module, parts), updates(module, parts, 4.0), normalized=said)

    zeros = "zeros for all experts of"
    both, other = factors(experts=(0, 7)), factors(experts=(3,), seed=1)
    mixed = {"gate_proj": factors(experts=(1, 2))["gate_proj"]}
    mixed["down_proj"] = factors(experts=(2, 5))["down_proj"]
    return {
        "only gate": case(f"{zeros} {EXPERTS}.up_proj, {EXPERTS}.down_proj", names=["gate_proj"]),
        "only up": case(f"{zeros} {EXPERTS}.gate_proj, {EXPERTS}.down_proj", names=["up_proj"]),
        "only down": case(f"{zeros} {EXPERTS}.gate_proj, {EXPERTS}.up_proj", names=["down_proj"]),
        "up and down": case(f"{zeros} {EXPERTS}.gate_proj", names=["up_proj", "down_proj"]),
        "gate and up": case(f"{zeros} {EXPERTS}.down_proj", names=GATE_UP),
        "only layer 1": case("", module=SECOND),
        "one expert": case("zeros for experts 0, 1, 2, 3, 4, 5, 6 of", experts=[7]),
        "one projection of one expert": case(
            f"{zeros} {EXPERTS}.gate_proj, {EXPERTS}.up_proj", names=["down_proj"], experts=[4]
        ),
        "other experts in each layer": MoeCase(
            one_by_one(EXPERTS, both) | one_by_one(SECOND, other),
            updates(EXPERTS, both, 4.0) | updates(SECOND, other, 4.0),
            normalized="zeros for experts 0, 1, 2, 4, 5, 6, 7 of",
        ),
        "other experts in each projection": MoeCase(
            one_by_one(EXPERTS, mixed),
            updates(EXPERTS, mixed, 4.0),
            normalized=f"zeros for experts 0, 1, 3, 4, 6, 7 of {EXPERTS}.down_proj",
        ),
    }


def _ranks() -> dict[str, MoeCase]:
    def case(rank: Any, scaling: Any, **config: Any) -> MoeCase:
        parts = factors(rank, one_a=False)
        return MoeCase(one_by_one(EXPERTS, parts), updates(EXPERTS, parts, scaling), config=config)

    each = {r".*experts\.(0|4)\..*": 1, r"experts\.[1-3]\.\w+": 8}
    by_expert = lambda e, _: 1 if e in (0, 4) else 8 if e in (1, 2, 3) else 2  # noqa: E731
    by_name = lambda _, name: {"gate_proj": 1, "up_proj": 3, "down_proj": 6}[name]  # noqa: E731
    named = {"gate_proj": 1, "up_proj": 3}
    return {
        "a rank for each expert": case(
            by_expert, lambda e, n: 8 / by_expert(e, n), rank_pattern=each
        ),
        "a rank for each projection": case(
            by_name, lambda e, n: 12 / by_name(e, n), r=6, alpha=12, rank_pattern=named
        ),
        "a rank for each expert, rsLoRA": case(
            by_expert,
            lambda e, n: 8 / math.sqrt(by_expert(e, n)),
            rank_pattern=each,
            use_rslora=True,
        ),
        "an alpha for each expert": case(
            2,
            lambda e, n: 1.5 if e == 3 else 10.0 if e == 6 and n == "up_proj" else 4.0,
            alpha_pattern={f"{EXPERTS}.3.*": 3, "experts.6.up_proj": 20},
        ),
        "alphas of one projection, rsLoRA": case(
            2,
            lambda _, n: (32 if n == "down_proj" else 8) / math.sqrt(2),
            alpha_pattern={"down_proj": 32},
            use_rslora=True,
        ),
        "the first of two keys counts": case(
            lambda e, _: 4 if e == 1 else 2,
            lambda e, _: 8 / (4 if e == 1 else 2),
            rank_pattern={r"experts\.1\..*": 4, r"experts\..*": 2},
            r=7,
        ),
        "an expert's rank that the config does not tell": MoeCase(
            one_by_one(EXPERTS, factors(lambda e, _: 4 if e == 5 else 2, one_a=False)),
            error="adapter_config.json declares rank 2 but "
            f"{EXPERTS}.5.gate_proj.lora_A has 4 rows",
        ),
        "one expert's rank above the engine's": MoeCase(
            one_by_one(EXPERTS, factors(lambda e, _: 16 if e == 5 else 2, one_a=False)),
            error="LoRA rank 16 is greater than max_lora_rank 8",
            config={"rank_pattern": {r"experts\.5\..*": 16}},
        ),
    }


def _names() -> dict[str, MoeCase]:
    parts = factors(experts=(0, 1, 5))
    plain, wanted = one_by_one(EXPERTS, parts), updates(EXPERTS, parts, 4.0)
    one = factors(experts=[5])
    joined = one_by_one(EXPERTS, fused(one))
    gate = linear(f"{LAYER}.gate", 2, HIDDEN, 8)
    router = linear(f"{LAYER}.gate", 2, HIDDEN, 8, 16.0)
    nan, key = one_by_one(EXPERTS, parts), f"base_model.model.{EXPERTS}.5.up_proj.lora_B.weight"
    nan[key] = nan[key].copy()
    nan[key][3, 1] = np.nan
    turned = one_by_one(EXPERTS, parts)
    key = f"base_model.model.{EXPERTS}.1.gate_proj.lora_A.weight"
    turned[key] = turned[key].T
    swapped = one_by_one(
        EXPERTS, {"gate_proj": {1: (one["gate_proj"][5][1].T, one["gate_proj"][5][0].T)}}
    )
    half = {n: a for n, a in plain.items() if ".1.up_proj.lora_B" not in n}
    block = "model.layers.0.block_sparse_moe.experts"
    return {
        "an adapter's name": MoeCase(renamed(plain, ".weight", ".rl.weight"), wanted),
        "torch.compile": MoeCase(renamed(plain, "layers.0.", "layers.0._orig_mod."), wanted),
        "FSDP around each expert": MoeCase(
            renamed(plain, ".experts.", ".experts._fsdp_wrapped_module."), wanted
        ),
        "activation checkpoints and DDP": MoeCase(
            renamed(
                renamed(plain, "base_model.model.", "module.base_model.model."),
                ".mlp.",
                "._checkpoint_wrapped_module.mlp.",
            ),
            wanted,
        ),
        "no PEFT prefix": MoeCase(renamed(plain, "base_model.model.", ""), wanted),
        "one model. too few": MoeCase(
            renamed(plain, "model.model.model.", "model.model."),
            wanted,
            normalized="model.layers.N",
        ),
        "a multimodal wrapper's root": MoeCase(
            renamed(plain, ".model.layers", ".model.language_model.layers"),
            wanted,
            normalized="model.language_model.layers.N -> model.layers.N",
        ),
        "w1, w2, w3 of each expert": MoeCase(
            one_by_one(EXPERTS, parts, W_NAMES), wanted, normalized="w3 -> up_proj (3 modules)"
        ),
        "one expert's fused gate_up": MoeCase(
            joined, updates(EXPERTS, one, 4.0), normalized="gate_up_proj split into"
        ),
        "an expert's rows do not fit": MoeCase(
            renamed(joined, "5.down_proj", "4.gate_up_proj"),
            error=f"{EXPERTS}.4.gate_proj: lora_A has shape [2, 32], expected [2, 64]",
        ),
        "router": gate,
        "experts for an engine of several ranks": MoeCase(plain, wanted, engine="parallel"),
        "router as a target parameter": MoeCase(
            router.tensors,
            router.updates,
            config={
                "target_parameters": ["mlp.gate.weight"],
                "alpha_pattern": {"mlp.gate": 2, r"gate\.weight": 32},
            },
        ),
        "router and experts": MoeCase(gate.tensors | plain, gate.updates | wanted),
        "attention only": linear(Q, 2, HIDDEN, HIDDEN),
        "a router of other experts": MoeCase(
            linear(f"{LAYER}.gate", 2, HIDDEN, 16).tensors,
            error=f"{LAYER}.gate: lora_B has shape [16, 2], expected [8, 2]",
        ),
        "an expert too many": MoeCase(
            one_by_one(EXPERTS, factors(experts=(0, 8))),
            error="experts.8 is not in the engine (8 experts)",
        ),
        "a layer too many": MoeCase(
            renamed(plain, "layers.0", "layers.2"),
            error="model.layers.2.mlp.experts.0.gate_proj is not in the engine (2 layers)",
        ),
        "a flat layer too many": MoeCase(
            renamed(keyed(EXPERTS, *flat(factors()["down_proj"])), "layers.0", "layers.2"),
            error="model.layers.2.mlp.experts is not in the engine (2 layers)",
        ),
        "a projection that experts lack": MoeCase(
            plain | renamed(plain, "gate_proj", "q_proj"),
            error=f"modules do not exist in the engine (first: {EXPERTS}.0.q_proj)",
        ),
        "a dense block's projections": MoeCase(
            plain | linear(f"{LAYER}.up_proj", 2, HIDDEN, INNER).tensors,
            error=f"1 of 10 modules do not exist in the engine (first: {LAYER}.up_proj)",
        ),
        "a shared expert that the engine lacks": MoeCase(
            plain | linear(f"{LAYER}.shared_expert.up_proj", 2, HIDDEN, INNER).tensors,
            error=f"(first: {LAYER}.shared_expert.up_proj)",
        ),
        "experts for a dense engine": MoeCase(
            plain, error="no LoRA tensors match the engine", engine="qwen3-dense"
        ),
        "one expert's pair by half": MoeCase(
            half, error=f"{EXPERTS}.1.up_proj has lora_A but no lora_B"
        ),
        "one expert's A turned": MoeCase(
            turned, error=f"{EXPERTS}.1.gate_proj: lora_A has shape [64, 2], expected [2, 64]"
        ),
        "one expert's sides exchanged": MoeCase(
            swapped, error=f"{EXPERTS}.1.gate_proj: lora_A has shape [2, 32], expected [2, 64]"
        ),
        "one projection under two names": MoeCase(
            plain | renamed(plain, "gate_proj", "w1"),
            error=f"two tensors for {EXPERTS}.0.gate_proj",
        ),
        "a fused expert and its parts": MoeCase(
            plain | joined, error=f"two tensors for {EXPERTS}.5."
        ),
        "not a number in one expert": MoeCase(
            nan, error=f"non-finite values in base_model.model.{EXPERTS}.5.up_proj.lora_B.weight"
        ),
        "Mixtral": MoeCase(
            one_by_one(block, parts, W_NAMES),
            {
                f"{block}.{e}.{W_NAMES[name]}": (*pair, 4.0)
                for name, every in parts.items()
                for e, pair in every.items()
            },
            engine="mixtral",
        ),
        "Mixtral as transformers 5 names it": MoeCase(
            one_by_one(EXPERTS, parts),
            {
                f"{block}.{e}.{W_NAMES[name]}": (*pair, 4.0)
                for name, every in parts.items()
                for e, pair in every.items()
            },
            engine="mixtral",
            normalized="mlp -> block_sparse_moe (9 modules)",
        ),
        "Mixtral's flat experts": MoeCase(
            keyed(f"{EXPERTS}.base_layer", *flat(fused(factors())["gate_up_proj"]))
            | keyed(EXPERTS, *flat(factors()["down_proj"])),
            {
                f"{block}.{e}.{W_NAMES[name]}": (*pair, 4.0)
                for name, every in factors().items()
                for e, pair in every.items()
            },
            engine="mixtral",
        ),
    }


CASES: dict[str, MoeCase] = {**_partial(), **_ranks(), **FUSED, **_names()}
