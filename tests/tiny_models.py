"""Tiny random base models that a real vLLM can serve, and random PEFT adapters for them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

if TYPE_CHECKING:
    from pathlib import Path

VOCABULARY = 512
_COMMON = {
    "vocab_size": VOCABULARY,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
DENSE = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, **_COMMON}
MOE = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "moe_intermediate_size": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "head_dim": 16,
    **_COMMON,
}


def make_dense(directory: Path) -> Path:
    """Write a Qwen3 of hidden size 256 with a tokenizer of words t0 .. t511."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    return _save(Qwen3ForCausalLM(Qwen3Config(**DENSE)), directory)


def make_moe(directory: Path) -> Path:
    """Write a Qwen3-MoE with 8 experts of 32."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(0)
    return _save(Qwen3MoeForCausalLM(Qwen3MoeConfig(**MOE)), directory)


def _save(model: Any, directory: Path) -> Path:
    for parameter in model.parameters():  # larger than usual, so that greedy tokens vary
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.08)
    model.to(torch.bfloat16).save_pretrained(directory)
    save_tokenizer(directory)
    return directory


def save_tokenizer(directory: Path) -> None:
    """Write a tokenizer of words t0 .. t511."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"t{index}": index for index in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="t0").save_pretrained(directory)


def make_adapters(root: Path, *names: str) -> dict[str, Path]:
    """Write an adapter of all dense modules for each name, with other values each."""
    modules = dense_modules()
    return {name: make_adapter(root / name, modules, seed=n) for n, name in enumerate(names)}


def make_adapter(
    directory: Path,
    modules: dict[str, tuple[int, int]],
    *,
    seed: int,
    rank: int = 4,
    alpha: int = 16,
    std: float = 0.2,
    **config: Any,
) -> Path:
    """Write a PEFT adapter with random pairs for `modules` (name -> (in, out)), in bfloat16."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, (wide, out) in modules.items():
        a, b = ("lora_embedding_A", "lora_embedding_B")
        if not name.endswith("embed_tokens"):
            a, b = "lora_A.weight", "lora_B.weight"
        tensors[f"base_model.model.{name}.{a}"] = _random((rank, wide), std, generator)
        tensors[f"base_model.model.{name}.{b}"] = _random((out, rank), std, generator)
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, str(directory / "adapter_model.safetensors"))
    (directory / "adapter_model.safetensors").chmod(0o644)
    targets = sorted({name.rpartition(".")[2] for name in modules})
    content = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": targets,
        "bias": "none",
        **config,
    }
    (directory / "adapter_config.json").write_text(json.dumps(content))
    return directory


def _random(shape: tuple[int, int], std: float, generator: torch.Generator) -> torch.Tensor:
    return (torch.randn(shape, generator=generator) * std).to(torch.bfloat16)


def dense_modules(layers: int = 2) -> dict[str, tuple[int, int]]:
    """Return every linear module of the dense model: name -> (in, out)."""
    hidden, middle = DENSE["hidden_size"], DENSE["intermediate_size"]
    sizes = {
        "self_attn.q_proj": (hidden, 256),
        "self_attn.k_proj": (hidden, 128),
        "self_attn.v_proj": (hidden, 128),
        "self_attn.o_proj": (256, hidden),
        "mlp.gate_proj": (hidden, middle),
        "mlp.up_proj": (hidden, middle),
        "mlp.down_proj": (middle, hidden),
    }
    return {
        f"model.layers.{layer}.{name}": size
        for layer in range(layers)
        for name, size in sizes.items()
    }


def head_modules() -> dict[str, tuple[int, int]]:
    """Return the embedding and the output head of the dense model."""
    hidden = DENSE["hidden_size"]
    return {"model.embed_tokens": (VOCABULARY, hidden), "lm_head": (hidden, VOCABULARY)}


def moe_modules() -> dict[str, tuple[int, int]]:
    """Return attention and every expert of the MoE model."""
    hidden, middle = MOE["hidden_size"], MOE["moe_intermediate_size"]
    found = {}
    for layer in range(2):
        prefix = f"model.layers.{layer}"
        found[f"{prefix}.self_attn.q_proj"] = (hidden, 64)
        found[f"{prefix}.self_attn.o_proj"] = (64, hidden)
        for expert in range(8):
            name = f"{prefix}.mlp.experts.{expert}"
            found[f"{name}.gate_proj"] = (hidden, middle)
            found[f"{name}.up_proj"] = (hidden, middle)
            found[f"{name}.down_proj"] = (middle, hidden)
    return found
