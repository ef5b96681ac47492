"""Valid adapters of every layout that the rewrites know, and profiles that take them."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from lorafleet.dtypes import ITEM_BYTES
from lorafleet.profile import EngineProfile, LoraModule, ModuleKind

if TYPE_CHECKING:
    from random import Random

BASE = "tiny/model"
HIDDEN, EXPERTS, RANK = 32, 4, 4
PREFIX = "base_model.model."
Entry = tuple[str, str, tuple[int, ...]]

_LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj"]
_DTYPES = ["BF16", "F16", "F32", "F64", "I8", "BOOL", "F8_E4M3"]
_SEGMENTS = ["model", "language_model", "_orig_mod", "module", "default", "experts", "0", "1", "9"]
_SEGMENTS += [
    "visual",
    "shared_experts",
    "base_layer",
    "gate_up_proj",
    "qkv_proj",
    "w1",
    "w2",
    "",
    "²",
]
_TAILS = [
    "lora_A.weight",
    "lora_B.weight",
    "lora_A.default.weight",
    "lora_embedding_A",
    "lora_B.bias",
]
_TAILS += ["lora_magnitude_vector", "weight", "lora_A", "lora_"]


def _linear(name: str, wide: int, out: int) -> list[tuple[str, tuple[int, ...]]]:
    return [(f"{name}.lora_A.weight", (RANK, wide)), (f"{name}.lora_B.weight", (out, RANK))]


def _modules(style: str) -> list[tuple[str, tuple[int, ...]]]:
    found = []
    for layer in range(2):
        at = f"model.layers.{layer}"
        if style == "fused":
            found += _linear(f"{at}.self_attn.qkv_proj", HIDDEN, 3 * HIDDEN)
            found += _linear(f"{at}.mlp.gate_up_proj", HIDDEN, 2 * HIDDEN)
            continue
        for part in _LINEAR:
            found += _linear(f"{at}.self_attn.{part}", HIDDEN, HIDDEN)
        if style == "experts":
            for expert in range(EXPERTS):
                for part in ("gate_proj", "up_proj", "down_proj"):
                    found += _linear(f"{at}.mlp.experts.{expert}.{part}", HIDDEN, HIDDEN)
        elif style == "stacked":
            for part in ("w1", "w2", "w3"):
                name = f"{at}.mlp.experts.{part}"
                found.append((f"{name}.lora_A.weight", (EXPERTS, RANK, HIDDEN)))
                found.append((f"{name}.lora_B.weight", (EXPERTS, HIDDEN, RANK)))
        elif style == "flat":
            for part, wide in (("experts.base_layer", 2 * HIDDEN), ("experts", HIDDEN)):
                name = f"{at}.mlp.{part}"
                found.append((f"{name}.lora_A.weight", (EXPERTS * RANK, HIDDEN)))
                found.append((f"{name}.lora_B.weight", (wide, RANK * EXPERTS)))
    return found


STYLES = {style: _modules(style) for style in ("dense", "fused", "experts", "stacked", "flat")}


def entries(random: Random) -> list[Entry]:
    """Return the tensors of a valid adapter; a part of one of the styles."""
    chosen = STYLES[random.choice(list(STYLES))]
    pairs = len(chosen) // 2
    first = random.randrange(pairs)
    last = random.choice([first + 1, pairs, min(pairs, first + 4)])
    dtype = random.choice(_DTYPES[:3])
    return [(PREFIX + name, dtype, shape) for name, shape in chosen[2 * first : 2 * last]]


def changed(random: Random, valid: list[Entry]) -> list[Entry]:
    """Change names, dtypes or shapes; the header around them stays consistent."""
    out = list(valid)
    for _ in range(random.choice([1, 1, 2, 5])):
        at = random.randrange(len(out))
        name, dtype, shape = out[at]
        action = random.randrange(7)
        if action == 0 and len(out) > 1:
            del out[at]
        elif action == 1:
            out[at] = (name, random.choice(_DTYPES), shape)
        elif action == 2:
            sizes = [random.choice([0, 1, 2, 4, 8, 32, 64, 1 << 20, 1 << 40]) for _ in shape]
            out[at] = (name, dtype, tuple(sizes))
        elif action == 3:
            out[at] = (name, dtype, (*shape[::-1], *[1] * random.randrange(3)))
        elif action == 4:
            words = name.split(".")
            words[random.randrange(len(words))] = random.choice(_SEGMENTS)
            out[at] = (".".join(words), dtype, shape)
        elif action == 5:
            words = name.split(".")
            words.insert(random.randrange(len(words)), random.choice(_SEGMENTS))
            out[at] = (".".join(words), dtype, shape)
        else:
            out[at] = (name.partition(".lora_")[0] + "." + random.choice(_TAILS), dtype, shape)
    return out


def header(tensors: list[Entry]) -> bytes:
    """Return the header's JSON, without holes."""
    raw: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, dtype, shape in tensors:
        size = ITEM_BYTES.get(dtype, 1)
        for extent in shape:
            size *= extent
        raw[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    return json.dumps(raw).encode()


def config(random: Random) -> bytes:
    """Return a valid adapter_config.json as PEFT writes it, with patterns at times."""
    raw: dict[str, Any] = {
        "peft_type": "LORA",
        "base_model_name_or_path": BASE,
        "r": RANK,
        "lora_alpha": 8,
        "bias": "none",
        "target_modules": ["q_proj", "v_proj"],
        "init_lora_weights": True,
        "peft_version": random.choice(["0.19.1", "0.18.0", "0.17.1", "0.21.0"]),
        "modules_to_save": None,
        "use_dora": False,
        "use_rslora": random.random() < 0.3,
        "layers_to_transform": None,
        "target_parameters": random.choice(
            [None, ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]]
        ),
        "rank_pattern": random.choice([{}, {"q_proj": RANK, ".*experts.*": RANK}]),
        "alpha_pattern": random.choice([{}, {r"^model\.layers\.[01]\.self_attn\.(q|v)_proj": 16}]),
    }
    return json.dumps(raw).encode()


def profile(random: Random) -> EngineProfile:
    """Return the engine that takes the seeds, at times with something of it changed."""
    found = profile_of_seeds()
    for _ in range(random.choice([0, 0, 1, 2])):
        change: dict[str, Any] = random.choice(
            [
                {"modules": ()},
                {"modules": found.modules[: random.randrange(1, 8)]},
                {"dtype": random.choice(["", "float16", "float32", "x"])},
                {"max_lora_rank": random.choice([0, 1, 4, 8])},
                {"tensor_parallel_size": random.choice([2, 3, 8])},
                {"expert_parallel": True},
                {"flags": ("enable_mixed_moe_lora_format",)},
                {"base_model": "another/model"},
            ]
        )
        found = replace(found, **change)
    return found


@cache
def profile_of_seeds() -> EngineProfile:
    """Return the engine that takes every seed."""
    modules = []
    for layer in range(2):
        at = f"model.layers.{layer}"
        modules += [LoraModule(f"{at}.self_attn.{part}", HIDDEN, HIDDEN) for part in _LINEAR]
        for part in ("gate_proj", "up_proj", "down_proj"):
            modules.append(LoraModule(f"{at}.mlp.{part}", HIDDEN, HIDDEN))
            modules.append(
                LoraModule(f"{at}.mlp.experts.{part}", HIDDEN, HIDDEN, ModuleKind.EXPERTS, EXPERTS)
            )
    return EngineProfile(
        BASE, dtype="bfloat16", max_lora_rank=8, num_hidden_layers=2, modules=tuple(modules)
    )
