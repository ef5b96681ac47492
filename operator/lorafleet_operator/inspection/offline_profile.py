"""An EngineProfile without an engine: a model's config.json and the engine's flags."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from lorafleet.profile import EngineProfile
from lorafleet.quoting import shown
from lorafleet.strict_json import StrictJsonError, load_object

from lorafleet_operator.inspection.model_config import ModelConfig, UnknownModel

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

VLLM_VERSION = "0.32.0"
"""The version whose rules `model_config` follows."""

MAX_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM takes for --max-lora-rank."""

FLAGS = (
    "enable_mixed_moe_lora_format",
    "enable_moe_shared_loras",
    "fully_sharded_loras",
    "enable_tower_connector_lora",
)
"""Flags of vLLM's LoRA configuration that a profile tells: those that the plugin looks at."""

DTYPES = ("bfloat16", "float16", "float32")
_MAX_CONFIG_BYTES = 1 << 20


def offline_profile(
    model: Path,
    *,
    base_model: str,
    aliases: Sequence[str] = (),
    dtype: str = "auto",
    max_lora_rank: int = 16,
    max_loras: int = 1,
    max_cpu_loras: int | None = None,
    tensor_parallel: int = 1,
    expert_parallel: bool = False,
    flags: Sequence[str] = (),
) -> EngineProfile:
    """Return what an engine of this model and these flags would report.

    `model` is a folder with config.json, or that file. The defaults are vLLM's. Raises
    UnknownModel with one line for people.
    """
    path = model / "config.json" if model.is_dir() else model
    try:
        raw = load_object(_config_bytes(path), _MAX_CONFIG_BYTES)
    except OSError as error:
        raise UnknownModel(f"{path}: {error.strerror}") from None
    except StrictJsonError as error:
        raise UnknownModel(f"{path} {error}") from None
    config = ModelConfig.parse(raw)
    if max_lora_rank > MAX_LORA_RANKS[-1]:
        raise UnknownModel(
            f"max_lora_rank {max_lora_rank} is above {MAX_LORA_RANKS[-1]}, the largest vLLM accepts"
        )
    if max_lora_rank not in MAX_LORA_RANKS:
        raise UnknownModel(
            f"max_lora_rank {max_lora_rank} is none that vLLM accepts: "
            f"{', '.join(map(str, MAX_LORA_RANKS))}"
        )
    cpu_loras = max_loras if max_cpu_loras is None else max_cpu_loras
    if not 0 < max_loras <= cpu_loras:
        raise UnknownModel(f"max_cpu_loras {cpu_loras} is below max_loras {max_loras}")
    if tensor_parallel < 1:
        raise UnknownModel(f"tensor_parallel {tensor_parallel} is below 1")
    return EngineProfile(
        base_model=base_model,
        base_model_aliases=tuple(aliases),
        dtype=_dtype(raw.get("dtype") or raw.get("torch_dtype")) if dtype == "auto" else dtype,
        max_lora_rank=max_lora_rank,
        max_loras=max_loras,
        max_cpu_loras=cpu_loras,
        vocab_size=config.vocabulary,
        num_hidden_layers=config.layers,
        tensor_parallel_size=tensor_parallel,
        expert_parallel=expert_parallel,
        vllm_version=VLLM_VERSION,
        flags=tuple(flags),
        modules=config.modules(),
    )


def _config_bytes(path: Path) -> bytes:
    """Return the file's bytes, one more than allowed at most; opening a pipe does not wait."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise UnknownModel(f"{path} is not a file")
        return file.read(_MAX_CONFIG_BYTES + 1)


def _dtype(found: object) -> str:
    """Return the LoRA dtype that vLLM derives; it does not keep float32."""
    if found in ("bfloat16", "float16"):
        return str(found)
    raise UnknownModel(
        f"config.json: dtype is {shown(str(found), 40)}, say what vLLM runs with: --dtype bfloat16"
    )
