"""The last steps of a transfer, over an arena that is full of an earlier tenant's bytes."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import pytest
from lorafleet.errors import InvalidAdapter
from lorafleet.frames import ChunkFrame
from lorafleet.profile import EngineProfile, LoraModule, ModuleKind
from lorafleet_sidecar import commit, sealing
from lorafleet_sidecar.allocator import ALIGNMENT, Extent
from lorafleet_sidecar.arena import Arena
from lorafleet_sidecar.chunk_writer import ChunkWriter
from lorafleet_sidecar.staging_dir import StagingDirectory
from lorafleet_sidecar.staging_plan import StagingPlan
from staging_builders import BASE, SourceAdapter, engine_profile, source_adapter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
EXTENT = Extent(ALIGNMENT, ALIGNMENT)


@pytest.fixture
def arena(volume: Path) -> Iterator[Arena]:
    arena = Arena.create_or_open(volume, 3 * ALIGNMENT)
    arena.view[:] = b"\xff" * (3 * ALIGNMENT)
    yield arena
    arena.close()


def staged(
    volume: Path, arena: Arena, adapter: SourceAdapter, profile: EngineProfile
) -> tuple[StagingPlan, sealing.Seal]:
    raw = adapter.manifest().SerializeToString()
    plan = StagingPlan.make(raw, profile, 1 << 30)
    directory = StagingDirectory.create(volume, "0" * 32, EXTENT, plan, profile)
    gate = directory.gate()
    commit.clear(arena, EXTENT, plan.layout)
    gate.open()
    writer = ChunkWriter(directory, plan, arena)
    for cut in reversed(adapter.cuts()):
        offset, crc32c, data = adapter.chunk(*cut)
        writer.write(ChunkFrame(offset, crc32c, memoryview(data)))
    writer.close()
    gate.close()
    with ThreadPoolExecutor(2) as hashing:
        return plan, sealing.seal(arena, EXTENT, plan.layout, hashing, "team-a/sql")


@pytest.mark.parametrize(
    ("source", "target"), [("F32", "bfloat16"), ("F32", "float16"), ("F16", "bfloat16")]
)
def test_values_are_cast_once_to_the_engines_dtype(
    volume: Path, arena: Arena, source: str, target: str
) -> None:
    adapter = source_adapter(1, layers=1, dtype=source)
    plan, _ = staged(volume, arena, adapter, engine_profile(dtype=target))
    kinds = {"F32": np.float32, "F16": np.float16}
    goal = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}[target]
    at = 0
    for tensor in plan.header.tensors:
        wanted = np.frombuffer(adapter.data[tensor.begin : tensor.end], kinds[source]).astype(goal)
        module = plan.layout.modules[tensor.name.split("model.", 2)[2].rpartition(".lora_")[0]]
        packed = module.a if "lora_A" in tensor.name else module.b
        start = EXTENT.offset + len(plan.layout.image_header) + packed.offset
        assert bytes(arena.view[start : start + wanted.nbytes]) == wanted.tobytes()
        at += wanted.nbytes
    assert at == plan.layout.data_bytes


def test_neither_neighbours_nor_what_lay_there_before_are_mixed_in(
    volume: Path, arena: Arena
) -> None:
    plan, _ = staged(volume, arena, source_adapter(1), engine_profile())
    ones = b"\xff" * ALIGNMENT
    assert bytes(arena.view[:ALIGNMENT]) == ones
    assert bytes(arena.view[2 * ALIGNMENT :]) == ones
    tail = bytes(arena.view[EXTENT.offset + plan.image_bytes : EXTENT.end])
    assert len(tail) > 0
    assert tail == bytes(len(tail))


def test_the_digest_is_that_of_the_content_not_of_its_source(volume: Path, arena: Arena) -> None:
    _, of_bf16 = staged(volume, arena, source_adapter(1), engine_profile())
    (volume / "staging" / ("0" * 32)).rename(volume / "staging" / "elsewhere")
    wide = source_adapter(1)
    values = np.frombuffer(wide.data, ml_dtypes.bfloat16).astype(np.float32)
    entries = json.loads(wide.header)
    for entry in entries.values():
        entry["dtype"] = "F32"
        entry["data_offsets"] = [2 * at for at in entry["data_offsets"]]
    same = SourceAdapter(
        wide.name, "other", json.dumps(entries).encode(), values.tobytes(), wide.config
    )
    _, of_f32 = staged(volume, arena, same, engine_profile())
    assert of_f32 == of_bf16


def test_experts_that_the_source_lacks_are_zeros(volume: Path, arena: Arena) -> None:
    experts, rank, hidden, inner = 4, 8, 64, 32
    path = "model.layers.0.mlp.experts"
    profile = EngineProfile(
        base_model=BASE, dtype="bfloat16", max_lora_rank=8, num_hidden_layers=1,
        modules=tuple(
            LoraModule(f"{path}.{name}", *shape, ModuleKind.EXPERTS, experts)
            for name, shape in {
                "gate_proj": (hidden, inner), "up_proj": (hidden, inner), "down_proj": (inner, hidden)
            }.items()
        ),
    )  # fmt: skip
    adapter = source_adapter(
        7, layers=0, rank=rank,
        replace={
            f"base_model.model.{path}.2.gate_proj.lora_{side}.weight": np.ones(
                shape, ml_dtypes.bfloat16
            )
            for side, shape in (("A", (rank, hidden)), ("B", (inner, rank)))
        },
    )  # fmt: skip
    plan, _ = staged(volume, arena, adapter, profile)
    packed = plan.layout.modules[f"{path}.gate_proj"].a
    assert packed.shape == (experts, rank, hidden)
    start = EXTENT.offset + len(plan.layout.image_header)
    data = np.frombuffer(arena.view[start : start + plan.layout.data_bytes], ml_dtypes.bfloat16)
    gate = data[packed.offset // 2 :][: experts * rank * hidden].reshape(packed.shape)
    assert [float(gate[expert].astype(np.float32).sum()) for expert in range(experts)] == [
        0.0, 0.0, rank * hidden, 0.0,
    ]  # fmt: skip
    assert set(np.unique(data.astype(np.float32))) == {0.0, 1.0}


def test_the_revisions_files_are_readable_by_another_user_and_appear_whole(
    volume: Path, arena: Arena
) -> None:
    plan, seal = staged(volume, arena, source_adapter(1), engine_profile())
    leftover = volume / "revisions" / seal.digest.removeprefix("sha256:")
    leftover.mkdir(parents=True)
    (leftover / "old").write_text("of a commit that was killed")
    commit.write_revision(volume, seal, EXTENT, plan.layout)
    assert [path.name for path in leftover.parent.iterdir()] == [leftover.name]
    assert sorted(path.name for path in leftover.iterdir()) == [
        "adapter_config.json",
        "revision.json",
    ]
    assert {path.stat().st_mode & 0o777 for path in leftover.iterdir()} == {0o644}
    assert leftover.stat().st_mode & 0o777 == 0o755
    facts = json.loads((leftover / "revision.json").read_bytes())
    assert facts["digest"] == seal.digest
    assert facts["extent_offset"] == EXTENT.offset
    assert facts["data_offset"] == EXTENT.offset + len(plan.layout.image_header)


def with_alpha(adapter: SourceAdapter, alpha: float) -> SourceAdapter:
    config = json.loads(adapter.config) | {"lora_alpha": alpha}
    return replace(adapter, config=json.dumps(config).encode())


@pytest.mark.parametrize(
    ("dtype", "alpha", "taken"),
    [("float16", 16, False), ("float16", 8, True), ("float16", -16, False), ("bfloat16", 16, True)],
)
def test_values_must_be_finite_once_they_are_scaled(
    dtype: str, alpha: float, taken: bool, volume: Path, arena: Arena
) -> None:
    name = "model.layers.0.self_attn.v_proj"
    values = np.full((2048, 8), 40_000, np.float16)
    adapter = with_alpha(
        source_adapter(
            1,
            layers=1,
            dtype="F16",
            replace={f"base_model.model.{name}.lora_B.weight": values},
        ),
        alpha,
    )
    if taken:
        staged(volume, arena, adapter, engine_profile(dtype=dtype))
        return
    with pytest.raises(InvalidAdapter) as refused:
        staged(volume, arena, adapter, engine_profile(dtype=dtype))
    assert str(refused.value) == (
        f"adapter team-a/sql: {name}.lora_B: not finite after the scaling in float16 "
        "(lora_alpha makes it 2)"
    )


@pytest.mark.parametrize(
    ("side", "zero", "alpha", "identity"),
    [("A", 0.0, 16, True), ("B", -0.0, 16, True), ("B", 1e-38, 0, True), ("B", 1e-38, 16, False)],
)
def test_zero_factors_or_a_zero_scaling_are_an_identity(
    side: str, zero: float, alpha: float, identity: bool, volume: Path, arena: Arena
) -> None:
    shape = {"A": (8, 2048), "B": (2048, 8)}[side]
    values = {
        f"base_model.model.model.layers.0.self_attn.{name}.lora_{side}.weight": np.full(
            shape, zero, ml_dtypes.bfloat16
        )
        for name in ("q_proj", "v_proj")
    }
    adapter = source_adapter(1, layers=1, replace=values)
    plan, _ = staged(volume, arena, with_alpha(adapter, alpha), engine_profile())
    assert commit.is_identity(arena, EXTENT, plan.layout) is identity


@pytest.mark.parametrize("dtype", ["BF16", "F32"])
def test_an_image_whose_every_lora_b_is_zero_is_an_identity(
    volume: Path, arena: Arena, dtype: str
) -> None:
    kind = {"BF16": ml_dtypes.bfloat16, "F32": np.float32}[dtype]
    path = "base_model.model.model.layers.0.self_attn"
    zeros = {
        f"{path}.{name}.lora_B.weight": np.zeros((2048, 8), kind) for name in ("q_proj", "v_proj")
    }
    adapter = source_adapter(1, layers=1, dtype=dtype, replace=zeros)
    plan, _ = staged(volume, arena, adapter, engine_profile())
    assert commit.is_identity(arena, EXTENT, plan.layout)
    module = plan.layout.modules["model.layers.0.self_attn.v_proj"]
    last = EXTENT.offset + len(plan.layout.image_header) + module.b.offset + 2048 * 8 * 2 - 1
    arena.view[last] = 1
    assert not commit.is_identity(arena, EXTENT, plan.layout)
