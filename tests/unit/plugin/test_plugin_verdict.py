"""The verdict over several ranks' evidence, without an engine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from lorafleet_vllm.proof_check import Verdict

if TYPE_CHECKING:
    from pathlib import Path

NAME = "model.layers.0.self_attn.q_proj"
A = ["a", [0, 1], [0, 8], [0, 64]]  # of rank 4 in a slot of rank 8
TOP, BOTTOM = ["b", [0, 1], [0, 16], [0, 8]], ["b", [0, 1], [16, 32], [0, 8]]


@pytest.fixture
def verdict(tmp_path: Path) -> Verdict:
    file = tmp_path / "revision.json"
    tensors = {"a": {"offset": 0, "shape": [4, 64]}, "b": {"offset": 512, "shape": [32, 4]}}
    entry = {"kind": "linear", "rank": 4, "scaling": 2.0, **tensors}
    entry["proof"] = {"a": f"{10:016x}", "b": f"{5:016x}"}
    file.write_text(json.dumps({"modules": {NAME: entry}}))
    return Verdict(file)


def rank(*parts: list[Any], name: str = NAME) -> dict[str, Any]:
    shown = [[*region, f"{number % 2**64:016x}"] for *region, number in parts]
    return {"layers": 1, "parts": {name: shown}, "enabled": {}}


def test_shares_that_cover_the_whole_add_up(verdict: Verdict) -> None:
    verdict.add([rank([*A, 10], [*TOP, 7]), rank([*A, 10], [*BOTTOM, -2])])
    verdict.finish()
    assert (verdict.line, verdict.modules) == ("", 1)


WRONG: dict[str, tuple[list[Any], str]] = {
    "another sum": (
        [rank([*A, 10], [*TOP, 7]), rank([*A, 10], [*BOTTOM, 2])],
        "lora_B in the engine's slot is not what was staged",
    ),
    "a shared part that differs": (
        [rank([*A, 10], [*TOP, 7]), rank([*A, 11], [*BOTTOM, -2])],
        "lora_A in the engine's slot differs between the ranks that share it (rank 1)",
    ),
    "a rank that shows nothing": (
        [rank([*A, 10], [*TOP, 5])],
        "lora_B in the engine's slot: the ranks show 64 of 128 values",
    ),
    "the same share twice": (
        [rank([*A, 10], [*TOP, 5]), rank([*A, 10], [*TOP, 5])],
        "lora_B in the engine's slot: the ranks show 64 of 128 values",
    ),
    "nothing in it": (
        [rank([*A, 0], [*TOP, 7], [*BOTTOM, -2])],
        "lora_A in the engine's slot is not what was staged: it is empty",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_first_module_that_differs_is_named(verdict: Verdict, name: str) -> None:
    evidence, line = WRONG[name]
    verdict.add(evidence)
    assert verdict.line == f"{NAME}: {line}"


def test_a_module_that_the_adapter_lacks_must_be_empty(verdict: Verdict) -> None:
    other = NAME.replace("q_proj", "k_proj")
    verdict.add([rank([*A, 0], [*TOP, 0], name=other)])
    assert verdict.line == ""
    verdict.add([rank([*A, 0], [*TOP, 3], name=other)])
    assert verdict.line == (
        f"{other}: lora_B in the engine's slot holds values where there must be none (rank 0)"
    )


def test_a_revision_without_fingerprints_is_staged_again(tmp_path: Path) -> None:
    file = tmp_path / "revision.json"
    tensors = {"a": {"offset": 0, "shape": [4, 64]}, "b": {"offset": 512, "shape": [32, 4]}}
    file.write_text(json.dumps({"modules": {NAME: {"kind": "linear", **tensors}}}))
    assert Verdict(file).line == f"{NAME}: revision.json says no fingerprints; stage it again"
