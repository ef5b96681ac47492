"""What `lorafleet profile` says of a model is what vLLM makes of it, for each architecture."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import live_modules
import pytest
from inspection_command import COMMON, model
from lorafleet_operator.inspection.model_config import ARCHITECTURES, ModelConfig
from lorafleet_operator.inspection.offline_profile import offline_profile
from lorafleet_operator.inspection.size import slot_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

DENSE = {
    **COMMON,
    "hidden_size": 128,
    "intermediate_size": 192,
    "max_position_embeddings": 512,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
MOE = {
    **DENSE,
    "head_dim": 32,
    "moe_intermediate_size": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "norm_topk_prob": True,
    "mlp_only_layers": [],
}
BIASED = {"attention_bias": True, "mlp_bias": True}
GEMMA = {
    **DENSE,
    "head_dim": 64,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 64,
    "sliding_window": 256,
}
# In this order: MoE first, and vLLM's Qwen-MoE classes remember that they once had dense layers.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_moe": ("Qwen3MoeForCausalLM", MOE),
    "qwen3_moe, every second layer": ("Qwen3MoeForCausalLM", {**MOE, "decoder_sparse_step": 2}),
    "qwen3_moe, a dense layer": ("Qwen3MoeForCausalLM", {**MOE, "mlp_only_layers": [1]}),
    "qwen2_moe, every second layer, nothing shared": (
        "Qwen2MoeForCausalLM",
        {**MOE, "decoder_sparse_step": 2, "shared_expert_intermediate_size": 0},
    ),
    "qwen2_moe": ("Qwen2MoeForCausalLM", {**MOE, "shared_expert_intermediate_size": 64}),
    "qwen3_moe, tied": ("Qwen3MoeForCausalLM", {**MOE, **BIASED, "tie_word_embeddings": True}),
    "mixtral": ("MixtralForCausalLM", {**DENSE, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "llama": ("LlamaForCausalLM", DENSE),
    "llama, biases, head_dim": ("LlamaForCausalLM", {**DENSE, **BIASED, "head_dim": 64}),
    "llama, tied": ("LlamaForCausalLM", {**DENSE, "tie_word_embeddings": True}),
    "mistral": ("MistralForCausalLM", {**DENSE, "head_dim": 64}),
    "qwen2": ("Qwen2ForCausalLM", DENSE),
    "qwen2, tied": ("Qwen2ForCausalLM", {**DENSE, **BIASED, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3ForCausalLM", {**DENSE, "head_dim": 64}),
    "qwen3, tied, head_dim of transformers": (
        "Qwen3ForCausalLM",
        {**DENSE, **BIASED, "tie_word_embeddings": True},
    ),
    "gemma": ("GemmaForCausalLM", GEMMA),
    "gemma2": ("Gemma2ForCausalLM", GEMMA),
    "gemma3_text": ("Gemma3ForCausalLM", GEMMA),
    "phi3": ("Phi3ForCausalLM", DENSE),
}


def config_of(name: str) -> dict[str, Any]:
    architecture, config = MODELS[name]
    return {**config, "model_type": name.partition(",")[0], "architectures": [architecture]}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, list[dict[str, Any]]]:
    root = tmp_path_factory.mktemp("architectures")
    folders = [model(root / str(at), config_of(name)) for at, name in enumerate(MODELS)]
    quiet = {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
    }
    ran = subprocess.run(
        [sys.executable, Path(live_modules.__file__), *folders],
        env=os.environ | quiet,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    lines = [line for line in ran.stdout.splitlines() if line.startswith("[{")]
    return {name: json.loads(line) for name, line in zip(MODELS, lines, strict=True)}


@pytest.mark.parametrize("name", MODELS)
def test_the_modules_of_config_json_are_those_of_the_model(
    name: str, live: Mapping[str, list[dict[str, Any]]]
) -> None:
    found = {each["name"]: each for each in live[name][:-1]}
    for module in ModelConfig.parse(config_of(name)).modules():
        assert found.pop(module.name) == {
            "name": module.name,
            "in_features": module.in_features,
            "out_features": module.out_features,
            "kind": module.kind.value,
            "num_experts": module.num_experts,
        }
    assert found == {}


@pytest.mark.parametrize("name", MODELS)
def test_a_slot_takes_what_vllm_allocates(
    name: str, live: Mapping[str, list[dict[str, Any]]], tmp_path: Path
) -> None:
    """One slot of rank 8, as tests/live_modules.py sets it."""
    profile = offline_profile(
        model(tmp_path, config_of(name)), base_model="m", dtype="bfloat16", max_lora_rank=8
    )
    assert slot_bytes(profile) == live[name][-1]["slot_bytes"]


def test_every_architecture_is_compared() -> None:
    assert {name.partition(",")[0] for name in MODELS} == set(ARCHITECTURES)
