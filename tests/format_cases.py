"""The handed cases, planned by lorafleet.layout and computed with numpy in float64."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from lorafleet.header import SafetensorsHeader, header_length, parse_header
from lorafleet.layout import CanonicalLayout, Copy, chunk_plan, plan_layout
from lorafleet.peft_config import AdapterConfig
from lorafleet.profile import EngineProfile, ModuleKind

HERE = Path(__file__).parent
CASES = HERE / "cases"
EXPECTED: dict[str, dict[str, dict[str, dict[str, Any]]]] = json.loads(
    (CASES / "EXPECTED.json").read_text()
)
NUMPY = {
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F16": np.dtype(np.float16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
}


@dataclass(frozen=True)
class Source:
    """One adapter as its files hold it."""

    header: SafetensorsHeader
    data: bytes
    config_text: bytes

    @property
    def config(self) -> AdapterConfig:
        return AdapterConfig.parse(self.config_text, adapter="team-a/sql")


def profile(name: str) -> EngineProfile:
    return EngineProfile.from_json((HERE / "profiles" / f"{name}.json").read_text())


def engine_of(case: str) -> EngineProfile:
    return profile("qwen3-moe" if case.startswith("m") else "qwen3-dense")


def read_source(folder: Path) -> Source:
    raw = (folder / "adapter_model.safetensors").read_bytes()
    length = header_length(raw[:8])
    data = raw[8 + length :]
    header = parse_header(raw[8 : 8 + length], len(data))
    return Source(header, data, (folder / "adapter_config.json").read_bytes())


def plan(source: Source, engine: EngineProfile, **options: Any) -> CanonicalLayout:
    return plan_layout(source.header, source.config, engine, adapter="team-a/sql", **options)


def execute(copy: Copy, source: memoryview, begin: int, target: memoryview) -> None:
    """Run one copy; `source` holds the source's bytes from `begin` on, and no others."""
    src, dst = NUMPY[copy.src_dtype], NUMPY[copy.dst_dtype]
    assert copy.src_offset >= begin

    def view(
        buffer: memoryview, offset: int, item: np.dtype[Any], row: int, step: int
    ) -> np.ndarray[Any, Any]:
        return np.ndarray(
            (copy.rows, copy.elements),
            item,
            buffer,
            offset,
            (row * item.itemsize, step * item.itemsize),
        )

    read = view(source, copy.src_offset - begin, src, copy.src_row_stride, copy.src_step)
    written = view(target, copy.dst_offset, dst, copy.dst_row_stride, copy.dst_step)
    written[:] = read.astype(dst)


def canonical_data(source: Source, layout: CanonicalLayout, chunk_bytes: int = 1000) -> bytearray:
    """Feed the source chunk by chunk, the last one first; unwritten bytes stay 0xFF."""
    target = bytearray(b"\xff" * layout.data_bytes)
    for offset, length in layout.zero_fill:
        target[offset : offset + length] = bytes(length)
    for begin, length in reversed(chunk_plan(source.header, chunk_bytes)):
        chunk = memoryview(source.data)[begin : begin + length]
        for copy in layout.copies(begin, begin + length):
            execute(copy, chunk, begin, memoryview(target))
    return target


def deltas(layout: CanonicalLayout, data: bytes | bytearray) -> dict[str, dict[str, Any]]:
    """Return EXPECTED.json's numbers for each module; experts one by one."""
    return {name: numbers(*factors) for name, factors in factors_of(layout, data).items()}


def factors_of(
    layout: CanonicalLayout, data: bytes | bytearray
) -> dict[str, tuple[Any, Any, float]]:
    """Return A, B in float64 and the scaling of each module; experts one by one."""
    found: dict[str, tuple[Any, Any, float]] = {}
    item = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}[layout.dtype]
    for name, module in layout.modules.items():
        a = np.ndarray(module.a.shape, NUMPY[item], data, module.a.offset).astype(np.float64)
        b = np.ndarray(module.b.shape, NUMPY[item], data, module.b.offset).astype(np.float64)
        if module.kind is not ModuleKind.EXPERTS:
            assert isinstance(module.scaling, float)
            found[name] = (a, b, module.scaling)
            continue
        experts, _, projection = name.rpartition(".")
        for e in range(a.shape[0]):
            scaling = module.scaling if isinstance(module.scaling, float) else module.scaling[e]
            found[f"{experts}.{e}.{projection}"] = (a[e], b[e], scaling)
    return found


def numbers(a: Any, b: Any, scaling: Any) -> dict[str, Any]:
    delta = scaling * (b @ a)
    u = np.cos(np.arange(delta.shape[0]) + 1)
    v = np.sin(2 * np.arange(delta.shape[1]) + 1)
    return {
        "rank": a.shape[0],
        "scaling": scaling,
        "shape": list(delta.shape),
        "fro": math.sqrt(float((delta * delta).sum())),
        "sum": float(delta.sum()),
        "probe": float(u @ delta @ v),
    }
