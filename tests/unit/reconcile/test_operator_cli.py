"""The verbs that need no cluster."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from kubernetes.aio.config import kube_config
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


def test_plan_says_what_a_tenant_lacks_and_what_is_not_granted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tenants = "tenants: [{name: a, namespaceSelector: {names: [team-a]}, quota: {adapters: 1}}]"
    second = ADAPTER.replace("name: sql", "name: tmp")
    guest = ADAPTER.replace("team-a", "team-b").replace(
        "{name: pool}", "{name: pool, namespace: team-a}"
    )
    pool = POOL.replace("baseModel: tiny}", f"baseModel: tiny, {tenants}}}")
    grant = """
apiVersion: lorafleet.dev/v1alpha1
kind: AdapterGrant
metadata: {namespace: team-a, name: guests}
spec: {from: [{namespace: team-b}], to: [{kind: EnginePool}]}
"""
    (tmp_path / "all.yaml").write_text("---".join([pool, ADAPTER, second, guest]))
    assert main(["plan", "-f", str(tmp_path / "all.yaml")]) == 0
    said = capsys.readouterr().out
    assert "team-a/sql: 1 of 2 engines" in said
    assert "QuotaExceeded: tenant a has 1 of 1 adapters" in said
    assert "engine-0: refused: tenant a has 1 of 1 adapters" in said
    missing = "namespace team-a holds no AdapterGrant from namespace team-b to EnginePool pool"
    assert f"NotGranted: {missing}" in said
    (tmp_path / "grant.yaml").write_text(grant)
    assert main(["plan", "-f", str(tmp_path / "all.yaml"), str(tmp_path / "grant.yaml")]) == 0
    said = capsys.readouterr().out
    assert "NotGranted" not in said
    assert "team-b/sql: 1 of 2 engines" in said


def test_plan_says_the_same_to_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "all.yaml").write_text(f"{POOL}---{ADAPTER}")
    assert main(["plan", "-o", "json", "-f", str(tmp_path / "all.yaml")]) == 0
    text = "takes no adapters: engine runs without --enable-lora"
    assert json.loads(capsys.readouterr().out) == {
        "pools": [
            {
                "pool": "team-a/pool",
                "exists": True,
                "engines": 2,
                "totalEngines": 0,
                "adapters": [
                    {
                        "adapter": "team-a/sql",
                        "wanted": 2,
                        "chosen": ["engine-0"],
                        "blocked": {
                            "reason": "NoMatchingEngines",
                            "message": f"1 of 2 engines: engine-1: {text}",
                        },
                        "engines": [
                            {
                                "engine": "engine-0",
                                "verdict": "chosen",
                                "reason": "",
                                "message": "policy All takes every engine",
                                "standing": "1 adapters, 0 of 2 slots pinned, 0.0 MiB of 64.0 MiB",
                            },
                            {
                                "engine": "engine-1",
                                "verdict": "refused",
                                "reason": "NoMatchingEngines",
                                "message": text,
                                "standing": "",
                            },
                        ],
                    }
                ],
            }
        ]
    }


def test_plan_knows_what_the_status_says_of_rank_limits_cordons_and_the_pools_bounds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the operator decides by, a plan from files decides by too, as far as a status has it."""
    pool = POOL.replace("baseModel: tiny}", "baseModel: tiny, maxAdaptersPerEngine: 1}")
    pool = pool.replace("maxLoras: 2,", "maxLoras: 2, maxLoraRank: 8, maxCpuLoras: 4,")
    pool += "  - {podName: engine-2, health: Ready, cordoned: true, arenaLimitBytes: 67108864}\n"
    large = ADAPTER.replace("name: sql", "name: large") + "status: {rank: 16}\n"
    sql = ADAPTER + "status: {engines: [{podName: engine-0}]}\n"
    more = ADAPTER.replace("name: sql", "name: more")
    (tmp_path / "all.yaml").write_text("---".join([pool, large, sql, more]))
    assert main(["plan", "-f", str(tmp_path / "all.yaml")]) == 0
    said = [line.partition(" (")[0] for line in capsys.readouterr().out.splitlines()]
    assert "    engine-0: refused: LoRA rank 16 is greater than max_lora_rank 8" in said
    assert "    engine-0: refused: has 1 of 1 adapters" in said
    assert "    engine-0: chosen: was chosen before" in said
    assert said.count("    engine-2: refused: is cordoned") == 3


def test_plan_names_a_pool_that_does_not_exist(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    (tmp_path / "sql.yaml").write_text(ADAPTER)
    assert main(["plan", "-f", str(tmp_path / "sql.yaml")]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "pool team-a/pool: does not exist",
        "  team-a/sql: 0 of 0 engines",
        "    PoolNotFound: EnginePool team-a/pool does not exist",
    ]


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


def test_a_file_that_is_not_there_is_named_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "-f", str(tmp_path / "none")]) == 1
    line = f"lorafleet-operator: {tmp_path}/none: No such file or directory\n"
    assert capsys.readouterr().err == line


def test_run_names_a_setting_that_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LORAFLEET_CHUNK_BYTES", "many")
    assert main(["run"]) == 2
    line = "LORAFLEET_CHUNK_BYTES='many': expected a whole number from 65536 to 16777216"
    assert capsys.readouterr().err == f"lorafleet-operator: {line}\n"


def test_run_without_a_cluster_ends_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rather than a traceback a minute, for ever."""
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    assert main(["run"]) == 2
    assert capsys.readouterr().err == (
        "lorafleet-operator: no cluster in a service account or in KUBECONFIG: "
        f"'{tmp_path}/none' does not exist\n"
    )
