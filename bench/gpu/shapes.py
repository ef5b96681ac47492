"""The models and adapters of the GPU benchmarks, by the name in LORAFLEET_BENCH_SHAPE.

`paper` is the source paper's workload: Qwen3-30B-A3B's shape, rank 64 on attention and every expert,
6.29 GiB. `moe` and `dense` are tiny: every line of a benchmark runs, its figures mean nothing. Experts
take LoRA only on a GPU; on the CPU `dense` is the one that decodes.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

SCALING = 0.5
_BYTES = 2  # bfloat16


@dataclass(frozen=True)
class Module:
    """One packed pair: A is [experts.., rank, wide], B is [experts.., out, rank]."""

    name: str
    kind: str  # linear or experts
    a: tuple[int, ...]
    b: tuple[int, ...]

    @property
    def rank(self) -> int:
        return self.a[-2]

    @property
    def nbytes(self) -> int:
        return (math.prod(self.a) + math.prod(self.b)) * _BYTES


@dataclass(frozen=True)
class Shape:
    """A base model; `experts` is 0 for a dense one, whose MLP is `middle` wide."""

    layers: int
    experts: int
    hidden: int
    middle: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    rank: int

    def config(self) -> dict[str, Any]:
        """Return the model's config.json."""
        kind = "qwen3_moe" if self.experts else "qwen3"
        experts = {
            "moe_intermediate_size": self.middle,
            "num_experts": self.experts,
            "num_experts_per_tok": min(8, self.experts),
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
        return {
            "architectures": ["Qwen3MoeForCausalLM" if self.experts else "Qwen3ForCausalLM"],
            "model_type": kind,
            "hidden_size": self.hidden,
            "intermediate_size": self.middle * (8 if self.experts else 1),
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocabulary,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "max_position_embeddings": 32768,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            **(experts if self.experts else {}),
        }

    def adapter(self, rank: int = 0, *, mlp: bool = True) -> list[Module]:
        """Return the pairs of one adapter, by default of the shape's rank; layer by layer."""
        rank = rank or self.rank
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = {
            "q_proj": (self.hidden, queries),
            "k_proj": (self.hidden, keys),
            "v_proj": (self.hidden, keys),
            "o_proj": (queries, self.hidden),
        }
        projections = {
            "gate_proj": (self.hidden, self.middle),
            "up_proj": (self.hidden, self.middle),
            "down_proj": (self.middle, self.hidden),
        }
        many = (self.experts,) if self.experts else ()
        kind, folder = ("experts", "mlp.experts") if self.experts else ("linear", "mlp")
        found = []
        for layer in range(self.layers):
            at = f"model.layers.{layer}"
            for name, (wide, out) in attention.items():
                found.append(Module(f"{at}.self_attn.{name}", "linear", (rank, wide), (out, rank)))
            for name, (wide, out) in projections.items() if mlp else ():
                a, b = (*many, rank, wide), (*many, out, rank)
                found.append(Module(f"{at}.{folder}.{name}", kind, a, b))
        return found

    @property
    def adapter_bytes(self) -> int:
        """Bytes of the whole adapter."""
        return sum(module.nbytes for module in self.adapter())

    @property
    def layer_bytes(self) -> int:
        """Bytes of one layer of the adapter."""
        return self.adapter_bytes // self.layers

    @property
    def expert_bytes_by_formula(self) -> int:
        """The source paper's 3 r (hidden + moe_intermediate) elements a layer and expert."""
        return 3 * self.rank * (self.hidden + self.middle) * self.layers * self.experts * _BYTES


SHAPES = {
    "paper": Shape(48, 128, 2048, 768, 32, 4, 128, 151936, 64),
    "moe": Shape(2, 8, 256, 128, 4, 2, 64, 512, 16),
    "dense": Shape(2, 0, 256, 512, 4, 2, 64, 512, 16),
}


def chosen() -> tuple[str, Shape]:
    """Return the shape that the environment names, and its name."""
    name = os.environ.get("LORAFLEET_BENCH_SHAPE", "paper")
    return name, SHAPES[name]
