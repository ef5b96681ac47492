"""All handed cases through `lorafleet inspect`, with profiles that `lorafleet profile` made."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from format_cases import CASES, EXPECTED
from inspection_command import QWEN3, QWEN3_MOE, model, run, same_numbers

if TYPE_CHECKING:
    from collections.abc import Mapping

OUTCOMES = {
    row["case-id"]: (row["engine"], row["expected outcome"])
    for row in csv.DictReader((CASES / "INDEX.tsv").read_text().splitlines(), delimiter="\t")
}
NAMES = "o05-names"
OVERFLOW = "d04-fp16-overflow"  # the engine's dtype decides
LOADED = [(case, part) for case, parts in EXPECTED.items() for part in parts]
REFUSED = [
    (case, outcome.removeprefix("error:"))
    for case, (_, outcome) in OUTCOMES.items()
    if outcome.startswith("error:") and case not in (NAMES, OVERFLOW)
]
REASONS = {
    "d07-rank-pattern-over-max": "RankTooHigh",
    "d10-rank-over-max": "RankTooHigh",
    "d51-config-missing": "SourceNotFound",
    "d59-other-base-same-shapes": "BaseModelMismatch",
}
COMMAND = Path(sys.executable).with_name("lorafleet")


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Profiles of the two engines, written by the real command in processes of its own."""
    folder = tmp_path_factory.mktemp("profiles")
    for kind, config in (("dense", QWEN3), ("moe", QWEN3_MOE)):
        arguments = f"--base-model tiny/qwen3-{kind} --max-lora-rank 8 --dtype bfloat16 -o json"
        made = subprocess.run(
            [COMMAND, "profile", model(folder / kind, config), *arguments.split()],
            check=True,
            capture_output=True,
            text=True,
        )
        (folder / f"{kind}.json").write_text(made.stdout)
    return {kind: folder / f"{kind}.json" for kind in ("dense", "moe")}


def folder_of(case: str, part: str = "") -> Path:
    return CASES / case / {"d54-hf-cache-symlinks": "snapshots/0123abcd"}.get(case, part)


@pytest.mark.parametrize(("case", "part"), LOADED)
def test_a_case_loads_with_the_numbers_of_its_modules(
    case: str, part: str, profiles: Mapping[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    engine, outcome = OUTCOMES[case]
    result = run(
        capsys, "inspect", folder_of(case, part), "--profile", profiles[engine], "-o", "json"
    )
    assert result.status == 0
    found = result.json
    assert list(found) == ["loads", "error", "normalized", "warnings", "modules"]
    assert (found["loads"], found["error"]) == (True, None)
    same_numbers(found["modules"], EXPECTED[case][part])
    if outcome.startswith("normalised:"):
        wanted = outcome.removeprefix("normalised:")
        assert any(wanted in line for line in found["normalized"]), found["normalized"]
    else:
        assert found["normalized"] == []
    zero = case == "d50-all-lora-b-zero"
    assert found["warnings"] == (["AdapterIsIdentity"] if zero else [])


@pytest.mark.parametrize(("case", "message"), REFUSED)
def test_a_case_is_refused_with_one_line_and_a_reason(
    case: str, message: str, profiles: Mapping[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    engine, _ = OUTCOMES[case]
    result = run(capsys, "inspect", folder_of(case), "--profile", profiles[engine], "-o", "json")
    assert result.status == 1
    found = result.json
    assert list(found) == ["loads", "error", "reason"]
    assert found["loads"] is False
    assert message in found["error"]
    assert "\n" not in found["error"]
    assert found["reason"] == REASONS.get(case, "InvalidAdapter")


def test_an_overflow_is_refused_for_float16_and_taken_for_bfloat16(
    tmp_path: Path, profiles: Mapping[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    narrow = json.loads(profiles["dense"].read_text()) | {"dtype": "float16"}
    (tmp_path / "fp16.json").write_text(json.dumps(narrow))
    case = CASES / OVERFLOW
    refused = run(capsys, "inspect", case, "--profile", tmp_path / "fp16.json", "-o", "json")
    assert refused.status == 1
    assert refused.json["error"].endswith(
        "layers.0.self_attn.q_proj.lora_B.weight: not finite after the cast to float16"
    )
    assert refused.json["reason"] == "InvalidAdapter"
    taken = run(capsys, "inspect", case, "--profile", profiles["dense"], "-o", "json")
    assert (taken.status, len(taken.json["modules"])) == (0, 4)


def served_names() -> list[tuple[str, str]]:
    rows = (CASES / NAMES / "names.tsv").read_text().splitlines()[1:]
    return [(name, outcome) for name, _, outcome in (row.partition("\t") for row in rows)]


@pytest.mark.parametrize(("name", "outcome"), served_names())
def test_a_served_name_is_checked_beside_the_adapter(
    name: str, outcome: str, profiles: Mapping[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--profile", profiles["dense"], f"--served-name={name}", "-o", "json"]
    result = run(capsys, "inspect", CASES / "d01-plain-bf16", *arguments)
    if outcome.startswith("error:"):
        assert result.status == 1
        assert outcome.removeprefix("error:") in result.json["error"]
    else:
        assert result.status == 0


def test_every_case_is_looked_at() -> None:
    seen = {case for case, _ in LOADED + REFUSED} | {NAMES, OVERFLOW}
    assert seen == set(OUTCOMES)
    assert len(OUTCOMES) == 48


@pytest.mark.parametrize(("case", "status"), [("m04-fused-peft-0-19", 0), ("d12-dora", 1)])
def test_the_installed_command_says_the_same(
    case: str, status: int, profiles: Mapping[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, profile = str(CASES / case), str(profiles[OUTCOMES[case][0]])
    arguments = ["inspect", folder, "--profile", profile, "-o", "json"]
    ran = subprocess.run([COMMAND, *arguments], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (status, "")
    assert json.loads(ran.stdout) == run(capsys, *arguments).json
