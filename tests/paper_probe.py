"""An engine in this process for checks of the plugin, and the small MoE model that it serves."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tiny_models
import torch
from arena_builder import ArenaBuilder

if TYPE_CHECKING:
    from pathlib import Path

SMALL = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 256,
    "intermediate_size": 512,
    "moe_intermediate_size": 128,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 512,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 2048,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


@dataclass
class Probe:
    """An engine in this process, with the managers of its only worker."""

    llm: Any
    arena: ArenaBuilder
    folder: Path

    @property
    def worker(self) -> Any:
        return self.llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker

    @property
    def lora(self) -> Any:
        return self.worker.model_runner.lora_manager

    @property
    def manager(self) -> Any:
        return self.lora._adapter_manager

    @property
    def residency(self) -> Any:
        return self.manager.lorafleet

    @property
    def cuda(self) -> bool:
        return bool(self.residency.device.type == "cuda")

    def allocated(self) -> int:
        """Return the bytes that torch holds for tensors on the GPU now."""
        if not self.cuda:
            return 0
        torch.cuda.synchronize()
        return int(torch.cuda.memory_allocated())

    def adapter(self, name: str, **options: Any) -> tuple[Path, str]:
        """Write an adapter for all modules; returns its folder and its staged digest."""
        folder = tiny_models.make_adapter(self.folder / name, modules(), seed=7, **options)
        return folder, self.arena.add(folder)

    def clear(self) -> None:
        """Unload everything."""
        from lorafleet_vllm.stats import WorkerStats

        for lora_int_id in list(self.residency.known):
            self.lora.remove_adapter(lora_int_id)
        self.lora.remove_all_adapters()
        self.residency.stats = WorkerStats()


def start(folder: Path, *, arena_bytes: int = 64 << 20, **options: Any) -> Probe:
    """Start an engine of the SMALL model with random weights and the plugin."""
    volume = folder / "volume"
    os.environ["LORAFLEET_VOLUME"] = str(volume)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    arena = ArenaBuilder(volume, arena_bytes)
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(SMALL))

    import lorafleet_vllm

    lorafleet_vllm.register()
    from vllm import LLM

    settings = {
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "enable_lora": True,
        "max_loras": 2,
        "max_cpu_loras": 3,
        "max_lora_rank": 16,
        "max_model_len": 512,
        "max_num_seqs": 8,
        "enforce_eager": True,
        "dtype": "bfloat16",
        "gpu_memory_utilization": 0.3,
        "distributed_executor_backend": "uni",
    }
    llm = LLM(model=str(model), **{**settings, **options})
    return Probe(llm, arena, folder)


def modules() -> dict[str, tuple[int, int]]:
    """Return attention and every expert of the small model: name -> (in, out)."""
    hidden, middle = 256, 128
    found: dict[str, tuple[int, int]] = {}
    for layer in range(2):
        attention = f"model.layers.{layer}.self_attn"
        found |= {
            f"{attention}.q_proj": (hidden, 256),
            f"{attention}.k_proj": (hidden, 128),
            f"{attention}.v_proj": (hidden, 128),
            f"{attention}.o_proj": (256, hidden),
        }
        for expert in range(8):
            name = f"model.layers.{layer}.mlp.experts.{expert}"
            found |= {
                f"{name}.gate_proj": (hidden, middle),
                f"{name}.up_proj": (hidden, middle),
                f"{name}.down_proj": (middle, hidden),
            }
    return found
