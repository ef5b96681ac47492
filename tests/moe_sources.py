"""An adapter of a few experts, for an engine that has them side by side."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from lorafleet.profile import EngineProfile, LoraModule, ModuleKind
from staging_builders import BASE, source_adapter

EXPERTS, RANK, HIDDEN, INNER = 4, 8, 2048, 512
PATH = "model.layers.0.mlp.experts"
RANKS = {3: 4}
SHAPES = {"gate_proj": (HIDDEN, INNER), "up_proj": (HIDDEN, INNER), "down_proj": (INNER, HIDDEN)}
EXPERTS_PROFILE = EngineProfile(
    base_model=BASE,
    dtype="bfloat16",
    max_lora_rank=RANK,
    num_hidden_layers=1,
    modules=tuple(
        LoraModule(f"{PATH}.{name}", *shape, ModuleKind.EXPERTS, EXPERTS)
        for name, shape in SHAPES.items()
    ),
)


def some_experts(*numbers: int) -> dict[str, np.ndarray[tuple[int, int], np.dtype[np.float32]]]:
    random = np.random.default_rng(5)
    return {
        f"base_model.model.{PATH}.{number}.{name}.lora_{side}.weight": random.standard_normal(
            shape, np.float32
        ).astype(ml_dtypes.bfloat16)
        for number in numbers
        for name, (inputs, outputs) in SHAPES.items()
        for rank in (RANKS.get(number, RANK),)
        for side, shape in (("A", (rank, inputs)), ("B", (outputs, rank)))
    }


# Expert 1 is missing and expert 3 narrower: its place is cleared whole, then partly written.
EXPERTS_ADAPTER = source_adapter(
    7,
    layers=0,
    rank=RANK,
    replace=some_experts(0, 2, 3),
    rank_pattern={f"experts.3.{name}": RANKS[3] for name in SHAPES},
)
