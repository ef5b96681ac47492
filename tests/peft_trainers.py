"""A tiny model with a PEFT adapter, as trainers have it, and the file that PEFT makes of it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import Qwen3Config, Qwen3ForCausalLM

if TYPE_CHECKING:
    from pathlib import Path

    from lorafleet.push.content import Content

SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "head_dim": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


def peft_model(adapter: str = "default", dtype: torch.dtype = torch.bfloat16, **config: Any) -> Any:
    """Return a model whose adapter has random factors."""
    torch.manual_seed(0)
    base = Qwen3ForCausalLM(Qwen3Config(**SMALL)).to(dtype)
    given = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], **config}
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **given), adapter_name=adapter)
    randomise(model)
    return model


def randomise(model: Any) -> None:
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter.data, std=0.05)


def saved(model: Any, folder: Path, adapter: str = "default") -> bytes:
    """Return the weights' file as PEFT writes it."""
    model.save_pretrained(folder)
    there = folder if adapter == "default" else folder / adapter
    return (there / "adapter_model.safetensors").read_bytes()


def file_of(content: Content) -> bytes:
    """Return the file that a content's header and tensors make."""
    data = b"".join(bytes(piece) for tensor in content.tensors for piece in tensor.pieces())
    return len(content.header).to_bytes(8, "little") + content.header + data


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
