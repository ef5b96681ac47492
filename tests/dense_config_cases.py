"""Configs and values of dense adapters: patterns, features of PEFT, base models, dtypes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from dense_case import ATTENTION, Q0, Q1, V0, V1, DenseCase, pairs, updates
from format_builders import PREFIX

PLAIN = pairs(*ATTENTION)
PLAIN_UPDATES = updates(PLAIN)


def _ranks() -> dict[str, DenseCase]:
    def case(
        ranks: dict[str, int], scaling: dict[str, float], said: tuple[str, ...] = (), **config: Any
    ) -> DenseCase:
        tensors = pairs(*ATTENTION, ranks=ranks)
        return DenseCase(tensors, updates(tensors, scaling), config=config, normalized=said)

    both: dict[str, Any] = {
        "rank_pattern": {r"^model\.layers\.0\..*q_proj": 2, "q_proj": 8},
        "alpha_pattern": {"v_proj": 3, r"model.layers.(0|1).self_attn.[qv]_proj": 32},
    }
    weights: dict[str, Any] = {
        "target_parameters": ["self_attn.q_proj.weight"],
        "rank_pattern": {"q_proj.weight": 2, "q_proj": 8},
        "alpha_pattern": {"layers.1.self_attn.q_proj": 5, "v_proj": 6},
    }
    return {
        "patterns, the first that fits": case(
            {Q0: 2, Q1: 8}, {Q0: 16.0, Q1: 4.0, V0: 0.75, V1: 0.75}, **both
        ),
        "patterns and rsLoRA": case(
            {Q0: 2, Q1: 2},
            {Q0: 8 / math.sqrt(2), Q1: 8 / math.sqrt(2), V0: 5 / 2, V1: 5 / 2},
            rank_pattern={"q_proj": 2},
            alpha_pattern={"v_proj": 5},
            use_rslora=True,
        ),
        "patterns of parameters": case(
            {Q0: 2, Q1: 2}, {Q0: 4.0, Q1: 4.0, V0: 1.5, V1: 1.5}, **weights
        ),
        "a pattern for all": case({}, {}, r=16, rank_pattern={".*": 4}),
        "a rank nobody has": case({}, {}, rank_pattern={"o_proj": 16}),
        "half an alpha": case({}, dict.fromkeys(ATTENTION, 0.375), lora_alpha=1.5),
        "a negative alpha": case({}, dict.fromkeys(ATTENTION, -2.0), lora_alpha=-8),
        "a rank too high in one module": DenseCase(
            pairs(*ATTENTION, ranks={V1: 16}),
            config={"rank_pattern": {r"layers\.1\..*v_proj": 16}},
            error="LoRA rank 16 is greater than max_lora_rank 8",
            reason="RankTooHigh",
        ),
        "a config of another rank": DenseCase(
            pairs(*ATTENTION, rank=8),
            error=f"adapter_config.json declares rank 4 but {Q0}.lora_A has 8 rows",
        ),
        "a pattern that lies": DenseCase(
            PLAIN,
            config={"rank_pattern": {"layers.1.self_attn.v_proj": 2}},
            error=f"adapter_config.json declares rank 2 but {V1}.lora_A has 4 rows",
        ),
        "a look-ahead": DenseCase(
            PLAIN,
            config={"rank_pattern": {"(?!x)q_proj": 4}},
            error="rank_pattern key (?!x)q_proj has a (?..) group that is not supported",
        ),
    }


def _values() -> dict[str, DenseCase]:
    b1, a0 = f"{PREFIX}{V1}.lora_B.weight", f"{PREFIX}{Q0}.lora_A.weight"

    def one(key: str, value: float, **more: Any) -> DenseCase:
        changed = PLAIN[key].copy()
        changed.flat[-1] = value
        return DenseCase(PLAIN | {key: changed}, **more)

    zero_a = {key: array * 0 if "lora_A" in key else array for key, array in PLAIN.items()}
    tiny = {key: array * 2.0**-16 if "lora_B" in key else array for key, array in PLAIN.items()}
    return {
        "NaN": one(b1, np.nan, error=f"non-finite values in {b1}"),
        "infinity in float32": one(a0, -np.inf, dtype="F32", error=f"non-finite values in {a0}"),
        "too large for bfloat16": one(
            a0, 3.4e38, dtype="F32", error=f"{a0}: not finite after the cast to bfloat16"
        ),
        "too large for float16": one(
            a0,
            7e4,
            dtype="F32",
            engine="float16",
            error=f"{a0}: not finite after the cast to float16",
        ),
        "too large once it is scaled": one(
            b1,
            4e4,
            dtype="F16",
            engine="float16",
            error=f"{V1}.lora_B: not finite after the scaling in float16 (lora_alpha makes it 2)",
        ),
        "float16": DenseCase(PLAIN, PLAIN_UPDATES, dtype="F16"),
        "subnormal float16": DenseCase(tiny, updates(tiny), dtype="F16"),
        "float64": DenseCase(PLAIN, PLAIN_UPDATES, dtype="F64"),
        "several types": DenseCase(
            PLAIN, PLAIN_UPDATES, dtypes={a0: "F32", b1: "F16"}, dtype="BF16"
        ),
        "int8": DenseCase(
            PLAIN,
            dtype="I8",
            error=f"{Q0}: lora_A has dtype I8, expected one of BF16, F16, F32, F64",
        ),
        "float8": DenseCase(
            PLAIN, dtypes={b1: "F8_E4M3"}, error=f"{V1}: lora_B has dtype F8_E4M3, expected one of"
        ),
        "every lora_A zero": DenseCase(zero_a, updates(zero_a), warnings=("AdapterIsIdentity",)),
        "an alpha of zero": DenseCase(
            PLAIN, updates(PLAIN, 0.0), config={"lora_alpha": 0}, warnings=("AdapterIsIdentity",)
        ),
    }


def _configs() -> dict[str, DenseCase]:
    def refused(error: str, **fields: Any) -> DenseCase:
        return DenseCase(PLAIN, error=error, config=fields)

    def taken(said: tuple[str, ...] = (), **fields: Any) -> DenseCase:
        return DenseCase(PLAIN, PLAIN_UPDATES, config=fields, normalized=said)

    recomputed = ("target_modules = [q_proj, v_proj]",)
    inits = {
        f"init {name}": refused(
            f"init_lora_weights={name} changes the base weights", init_lora_weights=name
        )
        for name in ("pissa", "PiSSA", "pissa_niter_4", "olora", "loftq", "corda", "new_init")
    }
    plain_inits = {
        f"init {name}": taken(init_lora_weights=name)
        for name in ("gaussian", "eva", "orthogonal", "mica", "lora_ga", True, False, None)
    }
    variants = {
        f"peft_type {name}": refused(
            f"peft_type {name} is not supported, expected LORA", peft_type=name
        )
        for name in ("VERA", "LOHA", "IA3", "MISS", "ADALORA", "XLORA")
    }
    harmless: dict[str, Any] = {
        "eva_config": {"rho": 2.0, "adjust_scaling_factors": True},
        "corda_config": {"corda_method": "kpm"},
        "lora_ga_config": {"direction": "ArB2r"},
        "loftq_config": {"loftq_bits": 4},
        "megatron_config": {"tensor_model_parallel_size": 2},
        "runtime_config": {"ephemeral_gpu_offload": True},
        "ensure_weight_tying": True,
        "fan_in_fan_out": True,
        "qalora_group_size": 16,
        "layers_to_transform": [0, 1],
        "exclude_modules": "lm_head",
        "auto_mapping": {"base_model_class": "Qwen3ForCausalLM"},
        "use_dora": False,
        "use_bdlora": None,
        "use_future_thing": False,
        "arrow_config": None,
        "alora_invocation_tokens": [],
        "a_future_field": [{"deep": {"er": None}}],
    }
    refusals: dict[str, tuple[str, Any]] = {
        "use_dora": ("DoRA is not supported", True),
        "lora_bias": ("lora_bias is not supported", True),
        "bias": ("bias: lora_only is not supported", "lora_only"),
        "alora_invocation_tokens": ("aLoRA (alora_invocation_tokens) is not supported", [7]),
        "use_qalora": ("QALoRA (use_qalora) is not supported", True),
        "use_bdlora": ("block-diagonal LoRA (use_bdlora) is not supported", {}),
        "kasa_config": ("KaSA (kasa_config) is not supported", {}),
        "arrow_config": ("Arrow routing (arrow_config) is not supported", {}),
        "layer_replication": ("layer_replication is not supported", [[0, 2], [0, 2]]),
        "trainable_token_indices": ("trainable_token_indices is not supported", {"embed": [3]}),
        "modules_to_save": (
            "modules_to_save [classifier, score] is not supported",
            ["classifier", "score"],
        ),
        "use_future_thing": ("use_future_thing is not known and may change", {"a": 1}),
        "r": ("has rank 4.0 for r, expected 1 to 65536", 4.0),
        "lora_alpha": ("has str for lora_alpha, expected a finite number", "8"),
    }
    return {
        **inits,
        **plain_inits,
        **variants,
        **{f"harmless {name}": taken(**{name: value}) for name, value in harmless.items()},
        **{
            f"field {name}": refused(error, **{name: value})
            for name, (error, value) in refusals.items()
        },
        "no target_modules": taken(recomputed, target_modules=...),
        "target_modules of null": taken(recomputed, target_modules=None),
        "other target_modules": taken(recomputed, target_modules=["o_proj"]),
        "more target_modules": taken(target_modules=["q_proj", "k_proj", "v_proj"]),
        "target_modules by whole names": taken(target_modules=list(ATTENTION)),
        "no r": refused("adapter_config.json has no r", r=...),
        "no lora_alpha": refused("adapter_config.json has no lora_alpha", lora_alpha=None),
        "an alpha that is not a number": refused("has nan for lora_alpha", lora_alpha=math.nan),
        "a rank of zero": refused("has rank 0 for r", r=0),
    }


def _bases() -> dict[str, DenseCase]:
    def case(base: Any, error: str = "", warning: str = "", **more: Any) -> DenseCase:
        told = (f"adapter was trained for {warning}, engine serves tiny/qwen3-dense",)
        return DenseCase(
            PLAIN,
            {} if error else PLAIN_UPDATES,
            error=error,
            reason="BaseModelMismatch",
            config={"base_model_name_or_path": base},
            warnings=told if warning else (),
            **more,
        )

    quantised = "unsloth/qwen3-dense-bnb-4bit"
    return {
        "the base in capitals": case("TINY/Qwen3-Dense"),
        "the base of a mirror": case("mirror/qwen3-dense/"),
        "the base from a cache": case("/root/.cache/models--tiny--qwen3-dense/snapshots/01"),
        "no base": case(None),
        "a base on some disk": case("/mnt/ckpt/step-100", warning="/mnt/ckpt/step-100"),
        "a base on a Windows disk": case("C:/ckpt/base", warning="C:/ckpt/base"),
        "a base of a relative path": case("./base", warning="./base"),
        "a quantised base": case(
            quantised,
            f"adapter was trained for {quantised}, engine serves tiny/qwen3-dense "
            "(set spec.allowBaseMismatch: true to load it)",
        ),
        "a quantised base that is allowed": case(
            quantised, warning=quantised, options=("--allow-base-mismatch",)
        ),
    }


CASES = {**_ranks(), **_values(), **_configs(), **_bases()}
