"""Every layout of experts loads with the trainer's own numbers, or is refused in one line."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from format_builders import config_text
from format_cases import numbers, profile
from inspection_command import run, same_numbers, written
from moe_cases import CASES

if TYPE_CHECKING:
    from pathlib import Path

MIXTRAL = {"mlp": "block_sparse_moe", "gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of profiles: the two handed engines, and a Mixtral of the same sizes."""
    folder = tmp_path_factory.mktemp("engines")
    moe = profile("qwen3-moe")
    modules = tuple(
        replace(module, name=".".join(MIXTRAL.get(s, s) for s in module.name.split(".")))
        for module in moe.modules
    )
    for name, engine in (
        ("qwen3-moe", moe),
        ("qwen3-dense", profile("qwen3-dense")),
        ("mixtral", replace(moe, modules=modules)),
        ("shared", replace(moe, flags=("enable_moe_shared_loras",))),
        ("parallel", replace(moe, tensor_parallel_size=2, expert_parallel=True)),
    ):
        (folder / f"{name}.json").write_text(engine.to_json())
    return folder


@pytest.mark.parametrize("name", CASES)
def test_a_case_gives_what_its_trainer_meant(
    name: str, engines: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = CASES[name]
    config: dict[str, Any] = {"r": 2, "alpha": 8, "base": "tiny/qwen3-moe", **case.config}
    adapter = written(tmp_path, case.tensors, config_text(**config), case.dtype)
    command = ("inspect", adapter, "--profile", engines / f"{case.engine}.json", "-o", "json")
    result = run(capsys, *command)
    found = result.json
    if case.error:
        assert case.error in found["error"]
        assert (result.status, found["loads"], "\n" in found["error"]) == (1, False, False)
        return
    assert (result.status, found["error"]) == (0, None)
    same_numbers(
        found["modules"], {each: numbers(*wanted) for each, wanted in case.updates.items()}
    )
    assert case.normalized == "" or any(case.normalized in line for line in found["normalized"])
