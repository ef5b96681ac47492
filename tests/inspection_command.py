"""The command `lorafleet`, run in this process, and the profiles that it makes of the tiny models."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from format_builders import config_text, header_text
from format_cases import NUMPY
from lorafleet_operator.inspection.cli import main

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

COMMON = {
    "vocab_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "torch_dtype": "bfloat16",
}
QWEN3 = {
    "model_type": "qwen3",
    "hidden_size": 256,
    "intermediate_size": 512,
    "head_dim": 64,
    **COMMON,
}
QWEN3_MOE = {
    "model_type": "qwen3_moe",
    "hidden_size": 64,
    "intermediate_size": 64,
    "moe_intermediate_size": 32,
    "num_experts": 8,
    "head_dim": 16,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    **COMMON,
}


@dataclass(frozen=True)
class Result:
    """What one run of the command left behind."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> Result:
    """Run `lorafleet ARGUMENTS` and return its exit status and output."""
    capsys.readouterr()
    status = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return Result(status, captured.out, captured.err)


def model(folder: Path, config: dict[str, Any]) -> Path:
    """Write a folder with a config.json and nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def written(
    folder: Path,
    tensors: dict[str, np.ndarray[Any, Any]],
    config: bytes | None = None,
    dtype: str = "F32",
) -> Path:
    """Write an adapter of these tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    text = header_text([(name, dtype, array.shape) for name, array in tensors.items()])
    data = b"".join(array.astype(NUMPY[dtype]).tobytes() for array in tensors.values())
    file = len(text).to_bytes(8, "little") + text + data
    (folder / "adapter_model.safetensors").write_bytes(file)
    (folder / "adapter_config.json").write_bytes(config or config_text())
    return folder


def same_numbers(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Compare the numbers of all modules; there may be no others."""
    assert set(found) == set(wanted)
    for name, numbers in wanted.items():
        assert found[name]["shape"] == numbers["shape"], name
        assert found[name]["rank"] == numbers["rank"], name
        for key in ("scaling", "fro", "sum", "probe"):
            assert found[name][key] == pytest.approx(numbers[key], rel=1e-9, abs=1e-9), (name, key)
