"""Every layout of experts loads with the trainer's own numbers, or is refused in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from format_cases import numbers
from inspection_command import run, same_numbers
from moe_case import engines
from moe_cases import CASES

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("engines")
    for name, engine in engines().items():
        (folder / f"{name}.json").write_text(engine.to_json())
    return folder


@pytest.mark.parametrize("name", CASES)
def test_a_case_gives_what_its_trainer_meant(
    name: str, profiles: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = CASES[name]
    engine = profiles / f"{case.engine}.json"
    result = run(capsys, "inspect", case.write(tmp_path), "--profile", engine, "-o", "json")
    found = result.json
    if case.error:
        assert case.error in found["error"]
        assert (result.status, found["loads"], "\n" in found["error"]) == (1, False, False)
        return
    assert (result.status, found["error"]) == (0, None)
    wanted = {module: numbers(*factors) for module, factors in case.updates.items()}
    same_numbers(found["modules"], wanted)
    assert case.normalized == "" or any(case.normalized in line for line in found["normalized"])
