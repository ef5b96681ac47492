"""What staging takes in memory beside the plan: the chunk and scratch, whatever the adapter's size."""

from __future__ import annotations

import json
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from math import prod
from typing import TYPE_CHECKING, Any

import google_crc32c
import ml_dtypes
import numpy as np
import pytest
from lorafleet.frames import ChunkFrame
from lorafleet.profile import EngineProfile, LoraModule, ModuleKind
from lorafleet_sidecar import commit, sealing
from lorafleet_sidecar.allocator import ALIGNMENT, Extent
from lorafleet_sidecar.arena import Arena
from lorafleet_sidecar.chunk_writer import ChunkWriter
from lorafleet_sidecar.staging_dir import StagingDirectory
from lorafleet_sidecar.staging_plan import StagingPlan
from staging_builders import BASE, SourceAdapter

if TYPE_CHECKING:
    from pathlib import Path

EXPERTS, RANK, CHUNK = 8, 4, 256 << 10
FLAT = EXPERTS * RANK
SCRATCH = 9 << 20
"""A writer's scratch (1.25 MiB), a chunk's views, a thread's piece of a tensor for each of two."""


def adapter_of(layers: int, width: int, dtype: str) -> tuple[SourceAdapter, EngineProfile]:
    """One adapter that needs every rewrite, and its engine; sizes grow with both numbers."""
    entries: dict[str, Any] = {}
    modules: list[LoraModule] = []
    size = 0

    def pair(name: str, a: list[int], b: list[int]) -> None:
        nonlocal size
        for side, shape in (("A", a), ("B", b)):
            end = size + prod(shape) * (2 if dtype == "BF16" else 4)
            key = f"base_model.model._orig_mod.{name}.lora_{side}.default.weight"
            entries[key] = {"dtype": dtype, "shape": shape, "data_offsets": [size, end]}
            size = end

    for layer in range(layers):
        at, engine = f"layers.{layer}", f"model.layers.{layer}"
        pair(f"{at}.self_attn.qkv_proj", [RANK, width], [3 * width, RANK])
        modules += [LoraModule(f"{engine}.self_attn.{p}_proj", width, width) for p in "qkv"]
        if layer % 2:
            pair(f"{at}.mlp.experts.base_layer", [FLAT, 2 * width], [width, FLAT])
            pair(f"{at}.mlp.experts", [FLAT, width], [width, FLAT])
        else:
            pair(f"{at}.mlp.experts.gate_up_proj", [1, width, RANK], [EXPERTS, RANK, 2 * width])
            pair(f"{at}.mlp.experts.0.down_proj", [RANK, width], [width, RANK])
        modules += [
            LoraModule(f"{engine}.mlp.experts.{p}_proj", width, width, ModuleKind.EXPERTS, EXPERTS)
            for p in ("gate", "up", "down")
        ]
    values = np.resize(np.random.default_rng(0).standard_normal(9973, np.float32), size // 2)
    kind = ml_dtypes.bfloat16 if dtype == "BF16" else np.float32
    data = values[: size // np.dtype(kind).itemsize].astype(kind).tobytes()
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": BASE,
        "r": RANK,
        "lora_alpha": 6,
        "peft_version": "0.18.1",
        "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
    }
    profile = EngineProfile(
        BASE, dtype="bfloat16", max_lora_rank=8, num_hidden_layers=layers, modules=tuple(modules)
    )
    header, text = json.dumps(entries).encode(), json.dumps(config).encode()
    return SourceAdapter("team-a/all", f"{layers}:{width}", header, data, text), profile


def peak_of(volume: Path, layers: int, width: int, dtype: str) -> tuple[int, int]:
    """Return the bytes of the image, and the most that staging it held beside its plan."""
    adapter, profile = adapter_of(layers, width, dtype)
    raw = adapter.manifest(CHUNK).SerializeToString()
    plan = StagingPlan.make(raw, profile, 1 << 30)
    assert len(plan.layout.normalized) >= 6
    extent = Extent(0, -(-plan.image_bytes // ALIGNMENT) * ALIGNMENT)
    arena = Arena.create_or_open(volume, extent.size)
    directory = StagingDirectory.create(volume, "0" * 32, extent, plan, profile)
    commit.clear(arena, extent, plan.layout)
    data = memoryview(adapter.data)
    tracemalloc.start()
    with closing(directory.gate()) as gate, ThreadPoolExecutor(2) as hashing:
        gate.open()
        writer = ChunkWriter(directory, plan, arena)
        for offset, length in plan.chunks:
            piece = data[offset : offset + length]
            crc32c = google_crc32c.value(np.frombuffer(piece, np.uint8))
            writer.write(ChunkFrame(offset, crc32c, piece))
        writer.close()
        sealing.seal(arena, extent, plan.layout, hashing, "team-a/all")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    arena.close()
    return plan.image_bytes, peak


@pytest.mark.parametrize("dtype", ["BF16", "F32"])
@pytest.mark.parametrize(("layers", "width"), [(2, 512), (2, 32768), (64, 2048)])
def test_staging_holds_no_more_for_a_larger_adapter(
    volume: Path, layers: int, width: int, dtype: str
) -> None:
    size, peak = peak_of(volume, layers, width, dtype)
    assert peak < SCRATCH, f"{peak} bytes for an image of {size}"
