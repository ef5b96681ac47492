"""What `lorafleet inspect` says beside the handed cases."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from format_builders import config_text, pair
from format_cases import CASES, EXPECTED, HERE, NUMPY, numbers
from inspection_command import run, same_numbers, written

if TYPE_CHECKING:
    from pathlib import Path

DENSE = HERE / "profiles" / "qwen3-dense.json"
MOE = HERE / "profiles" / "qwen3-moe.json"
PLAIN = CASES / "d01-plain-bf16"
Q = "model.layers.0.self_attn.q_proj"
UNKNOWN = "the engine's modules are unknown: names and shapes were not checked"

Tensors = dict[str, "np.ndarray[Any, Any]"]


def experts(ranks: dict[int, int], module: str = "model.layers.0.mlp.experts") -> Tensors:
    """Return pairs of the experts, each of its own rank."""
    found: Tensors = {}
    for expert, rank in ranks.items():
        for name, wide, out in (("gate_proj", 64, 32), ("up_proj", 64, 32), ("down_proj", 32, 64)):
            found |= pair(f"{module}.{expert}.{name}", rank, wide, out)
    return found


def test_float32_keeps_the_trainers_numbers_on_a_bfloat16_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for dtype in ("F32", "F64"):
        tensors = pair(Q, 4, 256, 256)
        folder = written(tmp_path / dtype, tensors, dtype=dtype)
        found = run(capsys, "inspect", folder, "--profile", DENSE, "-o", "json").json["modules"]
        a, b = (array.astype(NUMPY[dtype]).astype(float) for array in tensors.values())
        same_numbers(found, {Q: numbers(a, b, 2.0)})


def test_factors_that_cancel_keep_their_norm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two large equal halves that cancel but for a millionth."""
    tensors = pair(Q, 4, 256, 256)
    a, b = tensors.values()
    a[2:], b[:, 2:] = a[:2], -b[:, :2] * (1 + 1e-9)
    folder = written(tmp_path / "x", tensors, dtype="F64")
    found = run(capsys, "inspect", folder, "-o", "json").json["modules"][Q]
    assert found["fro"] == pytest.approx(numbers(a, b, 2.0)["fro"], rel=1e-5)


def test_each_expert_keeps_its_own_rank_and_missing_ones_are_not_in_the_adapter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    patterns = {r"experts\.3\..*": 2}
    folder = written(
        tmp_path / "moe",
        experts({0: 4, 3: 2}),
        config_text(base="tiny/qwen3-moe", rank_pattern=patterns),
    )
    found = run(capsys, "inspect", folder, "--profile", MOE, "-o", "json").json
    ranks = {name: (each["rank"], each["scaling"]) for name, each in found["modules"].items()}
    layer = "model.layers.0.mlp.experts"
    assert ranks == {
        f"{layer}.{expert}.{name}_proj": (rank, 8 / rank)
        for expert, rank in ((0, 4), (3, 2))
        for name in ("gate", "up", "down")
    }
    assert any(
        line.startswith("zeros for experts 1, 2, 4, 5, 6, 7") for line in found["normalized"]
    )


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["F16", "BF16", "F32", "F64"])
def test_values_that_are_not_finite_are_refused_by_name(
    value: float, dtype: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = pair(Q, 4, 256, 256) | pair(Q.replace("q_proj", "o_proj"), 4, 256, 256)
    name = f"base_model.model.{Q}.lora_B.weight"
    tensors[name][255, 3] = value
    folder = written(tmp_path / "bad", tensors, dtype=dtype)
    result = run(capsys, "inspect", folder, "-o", "json")
    assert result.status == 1
    assert result.json["error"] == f"adapter bad: non-finite values in {name}"


def test_without_a_profile_it_says_what_was_not_checked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = run(capsys, "inspect", PLAIN, "-o", "json")
    assert (result.status, result.json["warnings"]) == (0, [UNKNOWN])
    assert result.json["modules"].keys() == EXPECTED["d01-plain-bf16"][""].keys()
    text = run(capsys, "inspect", PLAIN).out
    assert f"warning   {UNKNOWN}" in text
    assert "rank      2, an engine needs max_lora_rank 8 or more" in text


def test_another_base_is_refused_unless_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["inspect", CASES / "d59-other-base-same-shapes", "--profile", DENSE, "-o", "json"]
    assert run(capsys, *arguments).json["reason"] == "BaseModelMismatch"
    allowed = run(capsys, *arguments, "--allow-base-mismatch")
    assert allowed.status == 0
    assert allowed.json["warnings"] == [
        "adapter was trained for other-org/some-other-7b, engine serves tiny/qwen3-dense"
    ]


def test_the_text_tells_what_is_there_and_what_would_be_rewritten(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = run(capsys, "inspect", CASES / "d28-fused-qkv", "--profile", DENSE).out.splitlines()
    assert text[0] == f"adapter   {CASES / 'd28-fused-qkv'}"
    assert f"engine    {DENSE}: loads" in text
    assert any(line.startswith("rewrite   qkv_proj split into q_proj, k_proj") for line in text)
    rows = [line.split() for line in text[text.index("") + 1 :]]
    assert rows[0][:2] == ["module", "rank"]
    assert ["model.layers.*.self_attn.k_proj", "4", "2", "128x256", "2"] in [r[:5] for r in rows]


def test_several_engines_must_all_take_it(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["inspect", PLAIN, "--profile", DENSE, "--profile", MOE]
    result = run(capsys, *arguments, "-o", "json")
    assert (result.status, result.json["loads"]) == (1, False)
    engines = result.json["engines"]
    assert engines[str(DENSE)] == {"loads": True, "error": None, "reason": None}
    assert engines[str(MOE)]["error"] == result.json["error"]
    text = run(capsys, *arguments).out
    assert f"engine    {DENSE}: loads" in text
    assert f"engine    {MOE}: refused (InvalidAdapter): adapter d01-plain-bf16: " in text
    both = run(capsys, "inspect", PLAIN, "--profile", DENSE, "--profile", DENSE, "-o", "json")
    assert both.status == 0


PROFILES = {
    "no object": ("[]", "is not an engine profile"),
    "no JSON": ("{", "is not an engine profile"),
    "unknown field": ('{"base_model": "b", "colour": 1}', "is not an engine profile"),
    "wrong type": ('{"base_model": 5}', "base_model is int, expected str"),
    "wrong size": (
        '{"base_model": "b", "modules": [{"name": "x", "in_features": "1", '
        '"out_features": 1, "kind": "linear"}]}',
        "in_features is str, expected int",
    ),
    "wrong names": ('{"base_model": "b", "flags": [1]}', "flags holds more than names"),
}


@pytest.mark.parametrize("kind", PROFILES)
def test_a_file_that_is_no_profile_is_refused_as_such(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, message = PROFILES[kind]
    (tmp_path / "profile.json").write_text(text)
    result = run(capsys, "inspect", PLAIN, "--profile", tmp_path / "profile.json", "-o", "json")
    assert (result.status, result.json["reason"]) == (1, "InvalidProfile")
    assert message in result.json["error"]
    missing = run(capsys, "inspect", PLAIN, "--profile", tmp_path / "none", "-o", "json")
    assert missing.json["error"] == f"{tmp_path / 'none'}: No such file or directory"


def test_a_large_adapter_goes_through_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """72 MiB of factors, more than is kept in memory, all zero but the corners."""
    tensors: Tensors = {}
    for layer in range(9):
        name = f"base_model.model.model.layers.{layer}.mlp.down_proj"
        a, b = np.zeros((8, 1 << 19), np.float16), np.zeros((16, 8), np.float16)
        a[7, -1], b[15, 7] = layer, 2
        tensors |= {f"{name}.lora_A.weight": a, f"{name}.lora_B.weight": b}
    folder = written(tmp_path / "large", tensors, config_text(r=8), dtype="F16")
    found = run(capsys, "inspect", folder, "-o", "json").json["modules"]
    norms = [found[f"model.layers.{layer}.mlp.down_proj"]["fro"] for layer in range(9)]
    assert norms == pytest.approx([2.0 * layer for layer in range(9)])


def test_one_of_the_files_names_the_adapter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = run(capsys, "inspect", PLAIN, "-o", "json").json
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        assert run(capsys, "inspect", PLAIN / name, "-o", "json").json == expected
    shutil.copytree(PLAIN, tmp_path / "step")
    (tmp_path / "step/adapter_model.safetensors").rename(tmp_path / "step/best.safetensors")
    renamed = run(capsys, "inspect", tmp_path / "step/best.safetensors", "-o", "json")
    assert renamed.json == expected
    uri = run(capsys, "inspect", f"file://{PLAIN}", "-o", "json")
    assert uri.json == expected


def test_a_hugging_face_cache_is_read_at_its_revision(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "models--org--sql"
    shutil.copytree(CASES / "d54-hf-cache-symlinks", cache, symlinks=True)
    expected = EXPECTED["d54-hf-cache-symlinks"][""].keys()
    only = run(capsys, "inspect", cache, "-o", "json")
    assert (only.status, only.json["modules"].keys()) == (0, expected)
    (cache / "snapshots" / "feedface").mkdir()
    unclear = run(capsys, "inspect", cache, "-o", "json")
    assert unclear.json["reason"] == "SourceNotFound"
    assert "with 2 snapshots and no refs/main" in unclear.json["error"]
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("0123abcd\n")
    assert run(capsys, "inspect", cache, "-o", "json").json == only.json


def test_what_does_not_exist_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = run(capsys, "inspect", tmp_path / "none", "-o", "json")
    assert missing.json == {
        "loads": False,
        "error": f"{tmp_path / 'none'} does not exist",
        "reason": "SourceNotFound",
    }
    empty = run(capsys, "inspect", tmp_path)
    assert empty.status == 1
    assert "refused (SourceNotFound): adapter_config.json not found in" in empty.out


def test_a_pickle_may_be_forbidden(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["inspect", CASES / "d44-bin-weights", "-o", "json"]
    assert run(capsys, *arguments).status == 0
    refused = run(capsys, *arguments, "--no-allow-pickle")
    assert "adapter_model.bin is a pickle" in refused.json["error"]


def test_the_sidecars_profile_is_taken_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sidecar prints EngineProfile.to_json(), as does `lorafleet profile`."""
    found = json.loads(DENSE.read_text()) | {"plugin_version": "0.1.0", "api_servers": 2}
    (tmp_path / "live.json").write_text(json.dumps(found))
    assert run(capsys, "inspect", PLAIN, "--profile", tmp_path / "live.json").status == 0


def test_what_is_wrong_for_any_engine_is_refused_by_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run(capsys, "inspect", tmp_path / "none")
    where = f"{tmp_path}/none"
    assert found.out == (f"adapter   {where}\nrefused (SourceNotFound): {where} does not exist\n")
