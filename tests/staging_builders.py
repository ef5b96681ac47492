"""Adapters made of random numbers, and the profile of the engine that they fit."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import google_crc32c
import ml_dtypes
import numpy as np
from lorafleet.header import parse_header
from lorafleet.layout import chunk_plan
from lorafleet.profile import EngineProfile, LoraModule
from lorafleet.v1alpha1 import sidecar_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

BASE = "tiny/qwen3-dense"
DTYPES = {"BF16": ml_dtypes.bfloat16, "F16": np.float16, "F32": np.float32}


def engine_profile(layers: int = 2, width: int = 2048, dtype: str = "bfloat16") -> EngineProfile:
    """An engine with q_proj and v_proj of `width` x `width` in each layer."""
    return EngineProfile(
        base_model=BASE,
        dtype=dtype,
        max_lora_rank=64,
        max_loras=4,
        max_cpu_loras=8,
        vocab_size=512,
        num_hidden_layers=layers,
        modules=tuple(
            LoraModule(f"model.layers.{layer}.self_attn.{name}", width, width)
            for layer in range(layers)
            for name in ("q_proj", "v_proj")
        ),
    )


@dataclass(frozen=True)
class SourceAdapter:
    """An adapter as a source holds it: header, data section, config."""

    name: str
    fingerprint: str
    header: bytes
    data: bytes
    config: bytes

    def manifest(self, chunk_bytes: int = 64 << 10, **changes: Any) -> pb.AdapterManifest:
        """The manifest of its transfer, with `changes` to any field."""
        fields = {
            "adapter": self.name,
            "fingerprint": self.fingerprint,
            "safetensors_header": self.header,
            "adapter_config": self.config,
            "data_bytes": len(self.data),
            "chunk_bytes": chunk_bytes,
        }
        return pb.AdapterManifest(**{**fields, **changes})

    def cuts(
        self, chunk_bytes: int = 64 << 10, cut_before: Sequence[int] = ()
    ) -> list[tuple[int, int]]:
        """The chunk plan: (offset, length)."""
        return chunk_plan(parse_header(self.header, len(self.data)), chunk_bytes, cut_before)

    def chunk(self, offset: int, length: int) -> tuple[int, int, bytes]:
        """(offset, crc32c, bytes) of one cut."""
        piece = self.data[offset : offset + length]
        return offset, google_crc32c.value(piece), piece


def source_adapter(
    seed: int = 0,
    *,
    layers: int = 2,
    width: int = 2048,
    rank: int = 8,
    dtype: str = "BF16",
    name: str = "",
    replace: Mapping[str, np.ndarray[Any, Any]] | None = None,
    rank_pattern: Mapping[str, int] | None = None,
) -> SourceAdapter:
    """An adapter of `layers * 4 * width * rank` random values; `replace` sets tensors by name."""
    random = np.random.default_rng(seed)
    tensors: dict[str, np.ndarray[Any, Any]] = {}
    for layer in range(layers):
        for module in ("q_proj", "v_proj"):
            path = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            for side, shape in (("A", (rank, width)), ("B", (width, rank))):
                values = random.standard_normal(shape, np.float32).astype(DTYPES[dtype])
                tensors[f"{path}.lora_{side}.weight"] = values
    tensors.update(replace or {})
    entries: dict[str, Any] = {}
    at = 0
    for key, values in tensors.items():
        entries[key] = {
            "dtype": dtype,
            "shape": list(values.shape),
            "data_offsets": [at, at + values.nbytes],
        }
        at += values.nbytes
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": BASE,
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": ["q_proj", "v_proj"],
        "rank_pattern": dict(rank_pattern or {}),
    }
    return SourceAdapter(
        name=name or f"team-a/adapter-{seed}",
        fingerprint=f"test:{seed}:{dtype}:{rank}:{layers}:{width}",
        header=json.dumps(entries).encode(),
        data=b"".join(values.tobytes() for values in tensors.values()),
        config=json.dumps(config).encode(),
    )


def digests(adapter: SourceAdapter) -> list[bytes]:
    """Return the SHA-256 of each tensor's bytes."""
    tensors = parse_header(adapter.header, len(adapter.data)).tensors
    return [hashlib.sha256(adapter.data[t.begin : t.end]).digest() for t in tensors]


def changed(adapter: SourceAdapter, tensors: Iterable[int], seed: int = 0) -> SourceAdapter:
    """Return the adapter as a later step of its training has it: these tensors are others."""
    random, data = np.random.default_rng(seed), bytearray(adapter.data)
    entries = parse_header(adapter.header, len(adapter.data)).tensors
    for index in tensors:
        entry = entries[index]
        values = random.standard_normal(entry.shape, np.float32).astype(DTYPES[entry.dtype])
        data[entry.begin : entry.end] = values.tobytes()
    name = hashlib.sha256(data).hexdigest()
    return replace(adapter, data=bytes(data), fingerprint=f"changed:{name}")
