"""`lorafleet-operator plan` against an API server that does not answer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from kubernetes.aio.config import kube_config
from lorafleet_operator.cli import main

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

ADAPTER = """
apiVersion: lorafleet.dev/v1alpha1
kind: LoRAAdapter
metadata: {namespace: team-a, name: sql}
spec: {baseModel: tiny, poolRef: {name: pool}, source: {http: {url: "https://example.test/sql"}}}
"""
SILENT = {
    "kind": "Config",
    "current-context": "x",
    "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
    "clusters": [{"name": "x", "cluster": {"server": "https://127.0.0.1:1"}}],
    "users": [{"name": "x", "user": {}}],
}


def test_a_silent_cluster_is_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").write_text(json.dumps(SILENT))
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "config"))
    (tmp_path / "sql.yaml").write_text(ADAPTER)
    assert main(["plan", "-f", str(tmp_path / "sql.yaml")]) == 1
    said = capsys.readouterr().err
    assert "namespace team-a: the API server does not answer: " in said
    assert said.count("\n") == 1
