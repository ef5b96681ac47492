"""The verbs that need no cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from lorafleet_operator.cli import main

if TYPE_CHECKING:
    from pathlib import Path

POOL = """
apiVersion: lorafleet.dev/v1alpha1
kind: EnginePool
metadata: {namespace: team-a, name: pool}
spec: {selector: {matchLabels: {app: vllm}}, baseModel: tiny}
status:
  engines:
  - {podName: engine-0, health: Ready, maxLoras: 2, arenaLimitBytes: 67108864}
  - {podName: engine-1, health: Refused, message: engine runs without --enable-lora}
"""
ADAPTER = """
apiVersion: lorafleet.dev/v1alpha1
kind: LoRAAdapter
metadata: {namespace: team-a, name: sql}
spec:
  baseModel: tiny
  poolRef: {name: pool}
  source: {http: {url: "https://example.test/sql"}}
"""


def test_plan_says_for_each_engine_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pool.yaml").write_text(POOL)
    (tmp_path / "sql.yaml").write_text(ADAPTER)
    files = [str(tmp_path / "pool.yaml"), str(tmp_path / "sql.yaml")]
    assert main(["plan", "-f", *files]) == 0
    said = capsys.readouterr().out
    assert "team-a/sql: 1 of 2 engines" in said
    assert "engine-0: chosen" in said
    assert "engine-1: refused: takes no adapters: engine runs without --enable-lora" in said


def test_plan_says_how_many_engines_the_status_leaves_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = POOL.replace("status:", "status:\n  totalEngines: 150")
    (tmp_path / "all.yaml").write_text(f"{cut}---{ADAPTER}")
    assert main(["plan", "-f", str(tmp_path / "all.yaml")]) == 0
    assert "pool team-a/pool: 2 engines of 150" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (ADAPTER.replace("http:", "ftp:"), "exactly one"),
        ("a: [", "while parsing"),
        ("", "the files hold no LoRAAdapter"),
    ],
)
def test_a_manifest_that_cannot_be_planned_is_refused_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, line: str
) -> None:
    (tmp_path / "sql.yaml").write_text(text)
    assert main(["plan", "-f", str(tmp_path / "sql.yaml")]) == 1
    said = capsys.readouterr().err
    assert line in said
    assert said.count("\n") == 1


def test_run_names_a_setting_that_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LORAFLEET_CHUNK_BYTES", "many")
    assert main(["run"]) == 2
    assert "LORAFLEET_CHUNK_BYTES='many'" in capsys.readouterr().err
