"""What an adapter of a dense model must give: its updates, or the line that refuses it."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from format_builders import BASE, PREFIX
from format_cases import NUMPY
from moe_builders import exact

if TYPE_CHECKING:
    from pathlib import Path

    from moe_builders import Array

    Tensors = dict[str, Array]
    Updates = dict[str, tuple[Array, Array, float]]

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
SIZES = {
    "q_proj": (256, 256),
    "k_proj": (256, 128),
    "v_proj": (256, 128),
    "o_proj": (256, 256),
    "gate_proj": (256, 512),
    "up_proj": (256, 512),
    "down_proj": (512, 256),
    "embed_tokens": (512, 256),
    "lm_head": (256, 512),
    "qkv_proj": (256, 512),
    "gate_up_proj": (256, 1024),
}
KINDS = {
    **NUMPY,
    "I8": np.dtype(np.int8),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
}
Q0, V0, Q1, V1 = (f"model.layers.{n}.self_attn.{p}_proj" for n in (0, 1) for p in "qv")
ATTENTION = (Q0, V0, Q1, V1)


@dataclass(frozen=True)
class DenseCase:
    """`updates` that the adapter computes, or `error`, which its one line must hold.

    `files` come on top of config and weights; a str is a link to there, None takes a file away.
    """

    tensors: Tensors
    updates: Updates = field(default_factory=dict)
    error: str = ""
    reason: str = "InvalidAdapter"
    config: dict[str, Any] | bytes = field(default_factory=dict)
    dtype: str = "BF16"
    dtypes: dict[str, str] = field(default_factory=dict)  # of single tensors
    files: dict[str, bytes | str | None] = field(default_factory=dict)
    normalized: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    path: str = ""  # below the folder
    engine: str = "qwen3-dense"

    def write(self, folder: Path) -> Path:
        """Write the adapter's files and return what is to be inspected."""
        files: dict[str, bytes | str | None] = {
            CONFIG: self.config if isinstance(self.config, bytes) else config_of(**self.config),
            WEIGHTS: file_of(self.tensors, self.dtype, self.dtypes),
            **self.files,
        }
        for name, content in files.items():
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                file.write_bytes(content)
            elif content is not None:
                file.symlink_to(content)
        return folder / self.path


OPTIONS = {
    "--adapter-name": "adapter_name",
    "--drop-unmatched": "drop_unmatched",
    "--allow-base-mismatch": "allow_base_mismatch",
    "--no-allow-pickle": "allow_pickle",
}


ONLY_THE_COMMAND = {
    "a cache of one snapshot",
    "a cache of two snapshots",
    "a cache with a stale head",
    "a cache with a broken head",
    "nothing there",
    "a link that dangles",  # it leaves the claim, which is told first
}
"""A claim's path is the adapter's own folder; the command also looks around."""


def manifest(case: DenseCase) -> dict[str, Any]:
    """Return what a LoRAAdapter says where the command has an option."""
    if not case.options:
        return {}
    name, *value = case.options
    return {OPTIONS[name]: value[0] if value else not name.startswith("--no")}


def config_of(**more: Any) -> bytes:
    """Return a config as PEFT writes it, `more` on top; ... takes a field away."""
    config: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": BASE,
        "r": 4,
        "lora_alpha": 8,
        "bias": "none",
        "lora_dropout": 0.0,
        "use_rslora": False,
        "target_modules": "all-linear",
        "init_lora_weights": True,
        "peft_version": "0.19.1",
        **more,
    }
    return json.dumps({key: value for key, value in config.items() if value is not ...}).encode()


def file_of(tensors: Tensors, dtype: str = "BF16", dtypes: dict[str, str] | None = None) -> bytes:
    """Return a safetensors file."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = bytearray()
    for name, array in tensors.items():
        kind = (dtypes or {}).get(name, dtype)
        begin = len(data)
        data += array.astype(KINDS[kind]).tobytes()
        header[name] = {
            "dtype": kind,
            "shape": list(array.shape),
            "data_offsets": [begin, len(data)],
        }
    return framed(header, bytes(data))


def framed(header: Any, data: bytes = b"") -> bytes:
    """Return a file with this header, whatever it says."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def pairs(
    *modules: str, rank: int = 4, ranks: dict[str, int] | None = None, seed: int = 0
) -> Tensors:
    """Return random factors of the modules under PEFT's names, at the sizes of the tiny Qwen3."""
    found: Tensors = {}
    for number, module in enumerate(modules):
        wide, out = SIZES[module.rpartition(".")[2]]
        own = (ranks or {}).get(module, rank)
        a, b = exact(own, wide, seed=100 * seed + 2 * number), exact(out, own, seed=99 + number)
        found |= keyed(module, a, b)
    return found


def keyed(module: str, a: Array, b: Array) -> Tensors:
    """Return a pair under PEFT's names."""
    names = ("lora_A.weight", "lora_B.weight")
    if module.endswith("embed_tokens"):
        names = ("lora_embedding_A", "lora_embedding_B")
    return {f"{PREFIX}{module}.{name}": array for name, array in zip(names, (a, b), strict=True)}


def updates(tensors: Tensors, scaling: float | dict[str, float] = 2.0) -> Updates:
    """Return the updates of tensors under PEFT's names; `scaling` may be one for each module."""
    arrays = list(tensors.values())
    names = [key[len(PREFIX) : key.rindex(".lora_")] for key in tensors]
    return {
        name: (a, b, scaling if isinstance(scaling, float) else scaling.get(name, 2.0))
        for name, a, b in zip(names[::2], arrays[::2], arrays[1::2], strict=True)
    }


def renamed(tensors: Tensors, *changes: tuple[str, str]) -> Tensors:
    """Return the tensors with other names."""
    for old, new in changes:
        tensors = {name.replace(old, new): array for name, array in tensors.items()}
    return tensors
