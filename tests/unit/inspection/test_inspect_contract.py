"""Whatever is asked: one JSON object, 0 or 1, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from format_cases import CASES, EXPECTED, HERE
from inspection_command import run, same_numbers

if TYPE_CHECKING:
    from collections.abc import Callable

PROFILE = HERE / "profiles" / "qwen3-dense.json"
PLAIN = CASES / "d01-plain-bf16"
COMMAND = Path(sys.executable).with_name("lorafleet")


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, str]:
    result = run(capsys, "inspect", *arguments, "-o", "json")
    found: dict[str, Any] = result.json
    assert (result.status, result.err, list(found)) == (1, "", ["loads", "error", "reason"])
    assert found["loads"] is False
    assert found["error"].isprintable()
    assert len(found["error"]) <= 1000
    return found


@pytest.mark.parametrize(
    ("address", "reason", "message"),
    [
        ("", "SourceNotFound", "adapter_config.json not found in ."),
        ("/", "SourceNotFound", "adapter_config.json not found in /"),
        ("/dev/null", "SourceNotFound", "adapter_config.json not found in /dev/null"),
        ("no/such", "SourceNotFound", "no/such does not exist"),
        ("a\nb", "SourceNotFound", "a\\nb does not exist"),
        ("a\x00b", "SourceNotFound", "a\\x00b does not exist"),
        ("a\udcffb", "SourceNotFound", "a\\udcffb does not exist"),
        ("x/" * 5000, "SourceNotFound", "does not exist (File name too long)"),
        ("x" * 300, "SourceNotFound", "does not exist (File name too long)"),
        ("C:\\adapter", "SourceNotFound", "C:\\adapter does not exist"),
        ("s3x://a", "PathNotAllowed", "s3x:// is no address of an adapter"),
        ("http://", "PathNotAllowed", "source.http.url is not an http or https URL"),
        ("http://[::1", "PathNotAllowed", "source.http.url is not an http or https URL"),
        ("oci://", "PathNotAllowed", "source.oci.reference is not registry/repository:tag"),
    ],
)
def test_an_absurd_address_is_one_line(
    address: str,
    reason: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    found = refused(capsys, address, "--profile", PROFILE)
    assert found["reason"] == reason
    assert message in found["error"]


def spaced(path: Path) -> str:
    return f"{path.parent}//./{path.name}/"


@pytest.mark.parametrize(
    "form",
    [
        str,
        spaced,
        lambda path: os.path.relpath(path),
        lambda path: f"{path}/adapter_model.safetensors",
        lambda path: f"{path}/adapter_config.json",
        lambda path: f"file://{path}/",
        lambda path: f"FILE://localhost{path}/adapter_model.safetensors",
    ],
)
def test_every_form_of_a_path_is_the_same_adapter(
    form: Callable[[Path], str], capsys: pytest.CaptureFixture[str]
) -> None:
    address = form(PLAIN.resolve())
    result = run(capsys, "inspect", address, "--profile", PROFILE, "-o", "json")
    assert (result.status, result.err) == (0, "")
    same_numbers(result.json["modules"], EXPECTED[PLAIN.name][""])


def test_without_a_profile_the_adapter_is_told_and_that_nothing_was_compared(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = run(capsys, "inspect", PLAIN, "-o", "json")
    assert result.status == 0
    same_numbers(result.json["modules"], EXPECTED[PLAIN.name][""])
    unknown = "the engine's modules are unknown: names and shapes were not checked"
    assert result.json["warnings"] == [unknown]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"null",
        b"{}",
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b'{"base_model": 3}',
        b'{"base_model": "x", "modules": 3}',
        b'{"base_model": "x", "modules": [3]}',
        b'{"base_model": "x", "modules": [{"name": "a"}]}',
        b'{"base_model": "x", "dtype": "float8"}',
        b'{"base_model": "x", "max_lora_rank": NaN}',
        b'{"base_model": "x", "max_lora_rank": ' + b"9" * 5000 + b"}",
        b'{"base_model": "x", "of_the_future": 1}',
    ],
)
def test_a_file_that_is_no_profile_is_one_line(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "engine.json"
    file.write_bytes(content)
    found = refused(capsys, PLAIN, "--profile", file)
    assert found["reason"] == "InvalidProfile"
    assert found["error"].startswith(f"{file} is not an engine profile: ")


def test_a_profile_that_cannot_be_read_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file, why in ((tmp_path, "Is a directory"), (tmp_path / "none", "No such file")):
        found = refused(capsys, PLAIN, "--profile", file)
        assert found["reason"] == "InvalidProfile"
        assert why in found["error"]


def test_the_command_itself_writes_nothing_but_the_object(tmp_path: Path) -> None:
    address = b"no such \xff adapter"
    ran = subprocess.run(
        [COMMAND, "inspect", address, "-o", "json"], cwd=tmp_path, capture_output=True
    )
    assert (ran.returncode, ran.stderr) == (1, b"")
    assert json.loads(ran.stdout)["error"] == "no such \\udcff adapter does not exist"
    ran = subprocess.run([COMMAND, "inspect", address], cwd=tmp_path, capture_output=True)
    assert (ran.returncode, ran.stderr) == (1, b"")
    assert b"no such \\udcff adapter does not exist" in ran.stdout


@pytest.mark.parametrize("output", ["text", "json"])
@pytest.mark.parametrize(("case", "status"), [("d01-plain-bf16", 0), ("d10-rank-over-max", 1)])
def test_a_reader_that_goes_away_changes_nothing(case: str, status: int, output: str) -> None:
    """As in `lorafleet inspect .. | head -1`, for pipelines that stop at the first failure."""
    read, write = os.pipe()
    os.close(read)
    command = [COMMAND, "inspect", CASES / case, "--profile", PROFILE, "-o", output]
    ran = subprocess.run(command, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (ran.returncode, ran.stderr) == (status, b"")
