"""What the adapter format costs: planning, rewrites, casts. Ratios come from one run.

    python bench/format.py [--gib 1] [--volume /dev/shm]

- plan: header bytes to chunk plan and layout (parse_header, plan_layout, chunk_plan), as operator
  and sidecar do it, for an adapter of every expert's own tensors: a quarter, once and four times
  the 37,248 tensors of 48 layers with 128 experts.
- stage: the sidecar's own staging (begin, chunks of 4 MiB one after the other, commit with digest
  and fingerprints) of bfloat16 into a real arena. `untouched` are the canonical images of the rewritten ones.
  `every rewrite` is one file that needs all of them, a share of the layers each; the others need one.
- cast: the same path's conversion of float32 to bfloat16, two threads, beside two threads that
  copy the float32 bytes.

The clock is the wall's; the best of some runs counts, taken in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import google_crc32c
import numpy as np
from lorafleet.buffers import reuse_large_buffers
from lorafleet.frames import ChunkFrame
from lorafleet.header import parse_header
from lorafleet.layout import Copy, chunk_plan, plan_layout
from lorafleet.peft_config import AdapterConfig
from lorafleet.profile import EngineProfile, LoraModule, ModuleKind
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from lorafleet_sidecar.convert import Converter
from lorafleet_sidecar.staging import Stagings
from lorafleet_sidecar.store import RevisionStore

if TYPE_CHECKING:
    from collections.abc import Callable

EXPERTS, HIDDEN, INNER, RANK = 128, 2048, 768, 16
ATTENTION = {
    "q_proj": (HIDDEN, 4096),
    "k_proj": (HIDDEN, 512),
    "v_proj": (HIDDEN, 512),
    "o_proj": (4096, HIDDEN),
}
MLP = {"gate_proj": (HIDDEN, INNER), "up_proj": (HIDDEN, INNER), "down_proj": (INNER, HIDDEN)}
CHUNK = 4 << 20
MIB = 1 << 20


@dataclass
class Adapter:
    """A file's header as it grows."""

    rank: int = RANK
    entries: dict[str, Any] = field(default_factory=dict)
    size: int = 0
    peft_version: str = "0.19.1"
    targets: list[str] = field(default_factory=list)

    def pair(self, name: str, a: list[int], b: list[int], middle: str = "") -> None:
        """Append the two factors of one module."""
        for side, shape in (("A", a), ("B", b)):
            end = self.size + 2 * prod(shape)
            self.entries[f"base_model.model.{name}.lora_{side}{middle}.weight"] = {
                "dtype": "BF16", "shape": shape, "data_offsets": [self.size, end],
            }  # fmt: skip
            self.size = end

    def plain(self, name: str, size: tuple[int, int], middle: str = "") -> None:
        """Append a module of (in, out) as the engine has it."""
        self.pair(name, [self.rank, size[0]], [size[1], self.rank], middle)

    @property
    def header(self) -> bytes:
        """The header's JSON."""
        return json.dumps(self.entries, separators=(",", ":")).encode()

    @property
    def config(self) -> bytes:
        """adapter_config.json."""
        fields = {
                "peft_type": "LORA",
                "r": self.rank,
                "lora_alpha": 24.0,
                "target_modules": [],
                "base_model_name_or_path": "bench/base",
                "peft_version": self.peft_version,
                "target_parameters": self.targets,
        }  # fmt: skip
        return json.dumps(fields).encode()


def profile_of(layers: int) -> EngineProfile:
    """Return a mixture-of-experts engine."""
    modules = []
    for layer in range(layers):
        at = f"model.layers.{layer}"
        modules += [LoraModule(f"{at}.self_attn.{name}", *size) for name, size in ATTENTION.items()]
        modules += [
            LoraModule(f"{at}.mlp.experts.{name}", *size, ModuleKind.EXPERTS, EXPERTS)
            for name, size in MLP.items()
        ]
    return EngineProfile(
        "bench/base", dtype="bfloat16", max_lora_rank=64, num_hidden_layers=layers,
        modules=tuple(modules),
    )  # fmt: skip


# The layouts of one layer's experts.


def per_expert(adapter: Adapter, at: str) -> None:
    """Each expert's projections, as PEFT writes them for modules."""
    for expert in range(EXPERTS):
        for name, size in MLP.items():
            adapter.plain(f"{at}.experts.{expert}.{name}", size)


def per_expert_fused(adapter: Adapter, at: str) -> None:
    """gate and up of each expert as one module; a training wrapper in the names."""
    for expert in range(EXPERTS):
        name = f"{at}._orig_mod.experts.{expert}"
        adapter.plain(f"{name}.gate_up_proj", (HIDDEN, 2 * INNER))
        adapter.plain(f"{name}.down_proj", (INNER, HIDDEN))


def stacked(adapter: Adapter, at: str) -> None:
    """Three dimensions, gate and up fused."""
    for name, (wide, out) in (
        ("gate_up_proj", (HIDDEN, 2 * INNER)),
        ("down_proj", (INNER, HIDDEN)),
    ):
        adapter.pair(f"{at}.experts.{name}", [EXPERTS, RANK, wide], [EXPERTS, out, RANK])


def stacked_turned(adapter: Adapter, at: str) -> None:
    """Three dimensions, the last two exchanged, A shared by all experts."""
    for name, (wide, out) in MLP.items():
        adapter.pair(f"{at}.experts.{name}", [1, wide, RANK], [EXPERTS, RANK, out])


def flat(adapter: Adapter, at: str) -> None:
    """Two dimensions, B with the expert innermost."""
    adapter.targets = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    rows = EXPERTS * RANK
    adapter.pair(f"{at}.experts.base_layer", [rows, HIDDEN], [2 * INNER, rows])
    adapter.pair(f"{at}.experts", [rows, INNER], [HIDDEN, rows])


def flat_turned(adapter: Adapter, at: str) -> None:
    """The same as PEFT 0.18 wrote it: both factors on the other side."""
    adapter.targets, adapter.peft_version = (
        ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
        "0.18.1",
    )
    rows = EXPERTS * RANK
    adapter.pair(f"{at}.experts.base_layer", [rows, 2 * INNER], [HIDDEN, rows])
    adapter.pair(f"{at}.experts", [rows, HIDDEN], [INNER, rows])


def built(size: int, *forms: Callable[[Adapter, str], None]) -> tuple[Adapter, EngineProfile]:
    """Return an adapter of about `size` bytes, its layers in these forms in turn.

    Attention is fused, under a shorter root, with the adapter's name in the keys.
    """
    adapter, layer = Adapter(), 0
    while adapter.size < size:
        at = f"layers.{layer}"
        adapter.plain(f"{at}.self_attn.qkv_proj", (HIDDEN, 5120), ".default")
        adapter.plain(f"{at}.self_attn.o_proj", ATTENTION["o_proj"], ".default")
        forms[layer % len(forms)](adapter, f"{at}.mlp")
        layer += 1
    return adapter, profile_of(layer)


# Planning.


def large(layers: int) -> tuple[Adapter, EngineProfile]:
    """Return the adapter whose every expert has its own tensors."""
    adapter = Adapter()
    for layer in range(layers):
        for name, size in ATTENTION.items():
            adapter.plain(f"model.layers.{layer}.self_attn.{name}", size)
        per_expert(adapter, f"model.layers.{layer}.mlp")
    return adapter, profile_of(layers)


def plan_seconds(adapter: Adapter, profile: EngineProfile) -> float:
    """Return what one plan takes."""
    header, config = adapter.header, adapter.config
    begin = time.perf_counter()
    parsed = parse_header(header, adapter.size)
    layout = plan_layout(
        parsed, AdapterConfig.parse(config, adapter="bench"), profile, adapter="bench"
    )
    cuts = chunk_plan(parsed, CHUNK)
    seconds = time.perf_counter() - begin
    assert layout.modules
    assert cuts
    return seconds


def measure_plans() -> None:
    """Print the planning of three sizes."""
    per_tensor = {}
    for layers in (12, 48, 192):
        adapter, profile = large(layers)
        tensors = len(adapter.entries)
        seconds = min(plan_seconds(adapter, profile) for _ in range(5))
        per_tensor[layers] = seconds / tensors * 1e6
        print(f"plan  {tensors:7} tensors {seconds:6.3f} s {per_tensor[layers]:6.2f} us a tensor")
    print(f"plan  per tensor, 4x / 1x: {per_tensor[192] / per_tensor[48]:.2f}", flush=True)


# Staging.


def finite_values(size: int) -> memoryview:
    """Return `size` bytes of finite bfloat16 values."""
    one = np.random.default_rng(0).integers(0, 0x7F00, 1 << 20, np.uint16)
    return np.resize(one, size // 2).data.cast("B")


def stage(
    folder: Path, arena: int, header: bytes, config: bytes, data: memoryview, profile: EngineProfile
) -> tuple[float, float]:
    """Return the seconds until all chunks were written, and those of the commit."""
    return asyncio.run(_stage(folder, arena, header, config, data, profile))


async def _stage(
    folder: Path, arena: int, header: bytes, config: bytes, data: memoryview, profile: EngineProfile
) -> tuple[float, float]:
    volume = Path(tempfile.mkdtemp(dir=folder))
    store = RevisionStore.open(volume, arena)
    store.set_holds(())
    stagings = Stagings(store)
    manifest = pb.AdapterManifest(
        adapter="bench/adapter", fingerprint="bench", safetensors_header=header,
        adapter_config=config, data_bytes=len(data), chunk_bytes=CHUNK,
    )  # fmt: skip
    chunks = [
        ChunkFrame(offset, google_crc32c.value(np.frombuffer(piece, np.uint8)), piece)
        for offset, length in chunk_plan(parse_header(header), CHUNK)
        if (piece := data[offset : offset + length])
    ]
    begin = time.perf_counter()
    staging: Any = await stagings.begin(manifest.SerializeToString(), profile)
    await staging.open()
    for chunk in chunks:
        await staging.write(chunk)
    written = time.perf_counter()
    await staging.commit()
    committed = time.perf_counter()
    await staging.end()
    await stagings.close()
    store.close()
    shutil.rmtree(volume)
    return written - begin, committed - written


def measure_staging(folder: Path, size: int) -> None:
    """Print the staging of each layout beside that of its canonical image."""
    every = (per_expert, per_expert_fused, stacked, stacked_turned, flat_turned)
    rows = {
        "every rewrite": every, "per expert": (per_expert,), "fused": (per_expert_fused,),
        "stacked": (stacked,), "stacked, turned": (stacked_turned,), "flat": (flat,),
        "flat, turned": (flat_turned,),
    }  # fmt: skip
    for label, forms in rows.items():
        adapter, profile = built(size, *forms)
        layout = plan_layout(
            parse_header(adapter.header),
            AdapterConfig.parse(adapter.config, adapter="bench"), profile, adapter="bench",
        )  # fmt: skip
        data = finite_values(max(adapter.size, layout.data_bytes))
        rewritten = (adapter.header, adapter.config, data[: adapter.size])
        canonical = (layout.image_header[8:], layout.config_json, data[: layout.data_bytes])
        arena = layout.data_bytes + 64 * MIB
        runs = [
            (
                stage(folder, arena, *rewritten, profile),
                stage(folder, arena, *canonical, profile),
            )
            for _ in range(3 if len(forms) > 1 else 2)
        ]
        mine, untouched = (min(map(sum, side)) for side in zip(*runs, strict=True))
        (write, commit), (plain_write, plain_commit) = (
            [min(part) for part in zip(*side, strict=True)] for side in zip(*runs, strict=True)
        )
        print(
            f"stage {label:16} {layout.data_bytes / 2**30:.2f} GiB {mine:6.3f} s "
            f"(write {write:.3f}, commit {commit:.3f}); untouched {untouched:6.3f} s "
            f"(write {plain_write:.3f}, commit {plain_commit:.3f}); ratio {mine / untouched:.2f}",
            flush=True,
        )


# Casting.


def measure_cast(size: int) -> None:
    """Print the conversion beside a copy, two threads each."""
    values = np.resize(np.random.default_rng(0).standard_normal(1 << 20, np.float32), size // 4)
    source, copied = values.data.cast("B"), np.ones_like(values)
    target = bytearray(size // 2)
    header = parse_header(
        json.dumps(
            {"t": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}
        ).encode()
    )

    def cast(half: int) -> None:
        converter = Converter(header, memoryview(target), "bench")
        for at in range(half * size // 2, (half + 1) * size // 2, CHUNK):
            piece = Copy(at, at // 2, CHUNK // 4, "F32", "BF16")
            converter.run([piece], source[at : at + CHUNK], at)

    def copy(half: int) -> None:
        share = np.s_[half * size // 8 : (half + 1) * size // 8]
        for at in range(share.start, share.stop, CHUNK // 4):
            np.copyto(copied[at : at + CHUNK // 4], values[at : at + CHUNK // 4])

    with ThreadPoolExecutor(2) as threads:

        def seconds(work: Callable[[int], None]) -> float:
            begin = time.perf_counter()
            list(threads.map(work, range(2)))
            return time.perf_counter() - begin

        runs = [(seconds(cast), seconds(copy)) for _ in range(5)]
    casting, copying = (min(side) for side in zip(*runs, strict=True))
    print(
        f"cast  float32 to bfloat16 {size / casting / 1e9:.2f} GB/s of float32, copy "
        f"{size / copying / 1e9:.2f} GB/s; ratio {copying / casting:.2f}",
        flush=True,
    )


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--volume", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--only", choices=["plan", "stage", "cast"])
    arguments = parser.parse_args()
    reuse_large_buffers()  # as the sidecar does
    if arguments.only in (None, "plan"):
        measure_plans()
    if arguments.only in (None, "stage"):
        folder = Path(tempfile.mkdtemp(prefix="lorafleet-bench-", dir=arguments.volume))
        try:
            measure_staging(folder, int(arguments.gib * 2**30))
        finally:
            shutil.rmtree(folder)
    if arguments.only in (None, "cast"):
        measure_cast(256 * MIB)


if __name__ == "__main__":
    main()
