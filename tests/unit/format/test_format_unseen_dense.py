"""Every way in which a dense adapter comes loads with the trainer's numbers, or ends in one line."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from dense_cases import CASES
from format_cases import numbers, profile
from inspection_command import run, same_numbers

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of profiles: the handed engine, and the same of float16."""
    folder = tmp_path_factory.mktemp("engines")
    dense = profile("qwen3-dense")
    (folder / "qwen3-dense.json").write_text(dense.to_json())
    (folder / "float16.json").write_text(replace(dense, dtype="float16").to_json())
    return folder


@pytest.mark.parametrize("name", CASES)
def test_a_case_gives_what_its_trainer_meant(
    name: str, engines: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = CASES[name]
    adapter = case.write(tmp_path / "adapter")
    arguments = ("--profile", engines / f"{case.engine}.json", *case.options, "-o", "json")
    result = run(capsys, "inspect", adapter, *arguments)
    found = result.json
    if case.error:
        assert case.error in found["error"]
        assert found == {"loads": False, "error": found["error"], "reason": case.reason}
        assert (result.status, found["error"].isprintable()) == (1, True)
        return
    assert (result.status, found["loads"], found["error"]) == (0, True, None)
    same_numbers(
        found["modules"], {each: numbers(*wanted) for each, wanted in case.updates.items()}
    )
    assert tuple(found["normalized"]) == case.normalized
    assert tuple(found["warnings"]) == case.warnings
