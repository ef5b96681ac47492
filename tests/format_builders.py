"""Adapters made in memory from numpy arrays, for tests of the format."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from format_cases import NUMPY, Source
from lorafleet.header import parse_header

BASE = "tiny/qwen3-dense"
PREFIX = "base_model.model."


def config_text(r: int = 4, alpha: float = 8, base: str = BASE, **more: Any) -> bytes:
    """Return an adapter_config.json as PEFT writes it, `more` on top."""
    config: dict[str, Any] = {
        "peft_type": "LORA",
        "base_model_name_or_path": base,
        "r": r,
        "lora_alpha": alpha,
        "bias": "none",
        "target_modules": "all-linear",
        "init_lora_weights": True,
        "peft_version": "0.19.1",
    }
    return json.dumps({**config, **more}).encode()


def header_text(entries: list[tuple[str, str, tuple[int, ...]]], **metadata: str) -> bytes:
    """Return a header's JSON for (name, dtype, shape), in this order without holes."""
    raw: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    position = 0
    for name, dtype, shape in entries:
        size = int(np.prod(shape, dtype=object)) * NUMPY[dtype].itemsize
        raw[name] = {
            "dtype": dtype,
            "shape": list(shape),
            "data_offsets": [position, position + size],
        }
        position += size
    return json.dumps(raw).encode()


def source(tensors: dict[str, np.ndarray[Any, Any]], config: bytes, dtype: str = "F32") -> Source:
    """Return a source that holds `tensors` in this order."""
    text = header_text([(name, dtype, array.shape) for name, array in tensors.items()])
    data = b"".join(array.astype(NUMPY[dtype]).tobytes() for array in tensors.values())
    return Source(parse_header(text, len(data)), data, config)


def pair(
    name: str, rank: int, wide: int, out: int, seed: int = 0, prefix: str = PREFIX
) -> dict[str, np.ndarray[Any, Any]]:
    """Return random lora_A and lora_B of one linear module."""
    random = np.random.default_rng([seed, *name.encode()])
    return {
        f"{prefix}{name}.lora_A.weight": random.standard_normal((rank, wide)),
        f"{prefix}{name}.lora_B.weight": random.standard_normal((out, rank)),
    }
