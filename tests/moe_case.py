"""What an adapter of experts must give: its updates, or the line that refuses it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from format_builders import config_text
from format_cases import profile
from inspection_command import written
from moe_builders import exact, keyed

if TYPE_CHECKING:
    from pathlib import Path

    from lorafleet.profile import EngineProfile
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

    def write(self, folder: Path) -> Path:
        """Write the adapter's two files."""
        config: dict[str, Any] = {"r": 2, "alpha": 8, "base": "tiny/qwen3-moe", **self.config}
        return written(folder, self.tensors, config_text(**config), self.dtype)


_MIXTRAL = {"mlp": "block_sparse_moe", "gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}


def engines() -> dict[str, EngineProfile]:
    """Return the two handed engines, and others of the same sizes."""
    moe = profile("qwen3-moe")
    modules = tuple(
        replace(module, name=".".join(_MIXTRAL.get(s, s) for s in module.name.split(".")))
        for module in moe.modules
    )
    return {
        "qwen3-moe": moe,
        "qwen3-dense": profile("qwen3-dense"),
        "mixtral": replace(moe, modules=modules),
        "shared": replace(moe, flags=("enable_moe_shared_loras",)),
        "parallel": replace(moe, tensor_parallel_size=2, expert_parallel=True),
    }


def renamed(tensors: dict[str, Array], old: str, new: str) -> dict[str, Array]:
    return {name.replace(old, new): array for name, array in tensors.items()}


def linear(module: str, rank: int, wide: int, out: int, scaling: float = 4.0) -> MoeCase:
    a, b = exact(rank, wide, seed=7), exact(out, rank, seed=8)
    return MoeCase(keyed(module, a, b), {module: (a, b, scaling)})
