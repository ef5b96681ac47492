"""What an adapter of experts must give: its updates, or the line that refuses it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from moe_builders import exact, keyed

if TYPE_CHECKING:
    from moe_builders import Array

LAYER = "model.layers.0.mlp"
EXPERTS = f"{LAYER}.experts"
SECOND = "model.layers.1.mlp.experts"
Q = "model.layers.0.self_attn.q_proj"


@dataclass(frozen=True)
class MoeCase:
    """`updates` that the adapter computes, or `error`, which its one line must hold."""

    tensors: dict[str, Array]
    updates: dict[str, tuple[Array, Array, float]] = field(default_factory=dict)
    error: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    normalized: str = ""  # a line must hold this
    engine: str = "qwen3-moe"
    dtype: str = "BF16"


def renamed(tensors: dict[str, Array], old: str, new: str) -> dict[str, Array]:
    return {name.replace(old, new): array for name, array in tensors.items()}


def linear(module: str, rank: int, wide: int, out: int, scaling: float = 4.0) -> MoeCase:
    a, b = exact(rank, wide, seed=7), exact(out, rank, seed=8)
    return MoeCase(keyed(module, a, b), {module: (a, b, scaling)})
