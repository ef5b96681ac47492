"""`lorafleet-operator plan` against an API server that does not answer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import kube_config
from lorafleet_operator.cli import main
from lorafleet_operator.kubectl.cli import main as kubectl_lora

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


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


@pytest.fixture(autouse=True)
def own_cluster() -> Iterator[None]:
    """Leave the cluster that a client connects to by default as it was."""
    before = Configuration.get_default_copy()
    yield
    Configuration.set_default(before)


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


def test_kubectl_lora_tells_a_silent_cluster_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config").write_text(json.dumps(SILENT))
    assert kubectl_lora(["why", "sql", "--kubeconfig", str(tmp_path / "config")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("kubectl lora: the API server does not answer: ")
    assert said.count("\n") == 1


UNREADABLE = {
    "not YAML": b"{ a: [",
    "not text": b"\xff\xfe\x00\x80",
    "a list": b"- 1",
    "a word": b"hello",
    "nothing in it": b"",
    "a broken cluster": b"kind: Config\ncurrent-context: x\ncontexts: 3\n",
    "a certificate that is none": json.dumps(
        {**SILENT, "clusters": [{"name": "x", "cluster": {
            "server": "https://127.0.0.1:1", "certificate-authority-data": "!!!",
        }}]}
    ).encode(),
}  # fmt: skip


@pytest.mark.parametrize("case", UNREADABLE)
@pytest.mark.parametrize("program", ["run", "plan", "kubectl lora"])
def test_a_kubeconfig_that_cannot_be_read_is_told_in_one_line(
    case: str,
    program: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config, manifest = tmp_path / "config", tmp_path / "sql.yaml"
    config.write_bytes(UNREADABLE[case])
    manifest.write_text(ADAPTER)
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(config))
    run = {
        "run": lambda: main(["run"]),
        "plan": lambda: main(["plan", "-f", str(manifest)]),
        "kubectl lora": lambda: kubectl_lora(["why", "sql"]),
    }[program]
    status = run()
    said = capsys.readouterr().err
    if program == "plan" and not said:  # as good as no kubeconfig: it plans with the files alone
        assert (status, case) in {(0, "nothing in it")}
        return
    assert status in (1, 2)
    assert said.count("\n") == 1, said
    assert "KUBECONFIG" in said or "kubeconfig" in said
