"""`plan` and the explanation of one adapter, from what a real API server holds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from kubernetes.aio.config import kube_config
from lorafleet_operator.cli import main
from lorafleet_operator.explain import InvalidManifest, why
from resource_builders import adapter, path, pool

if TYPE_CHECKING:
    from pathlib import Path

    from kube_rest import KubeRest
    from localcluster import LocalCluster

ENGINE = {"health": "Ready", "maxLoras": 2, "maxCpuLoras": 4, "arenaLimitBytes": 64 << 20}
ENGINES = [
    {**ENGINE, "podName": "engine-0", "maxLoraRank": 8},
    {**ENGINE, "podName": "engine-1", "maxLoraRank": 64},
    {**ENGINE, "podName": "engine-2", "maxLoraRank": 64, "cordoned": True},
]


@pytest.fixture
def live(
    kube: KubeRest, namespace: str, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> str:
    """A namespace with a pool of three engines and an adapter that is on the second."""
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(cluster.kubeconfig))
    kube.create(path("EnginePool", namespace), pool(maxAdaptersPerEngine=1))
    kube.merge(
        path("EnginePool", namespace, "main", "status"),
        {"status": {"totalEngines": 3, "engines": ENGINES}},
    )
    spread = {"policy": "Spread", "replicas": 1}
    kube.create(path("LoRAAdapter", namespace), adapter("sql", placement=spread))
    kube.merge(
        path("LoRAAdapter", namespace, "sql", "status"),
        {"status": {"sizeBytes": 2 << 20, "rank": 16, "engines": [{"podName": "engine-1"}]}},
    )
    return namespace


def test_an_adapter_of_the_cluster_is_explained_engine_by_engine(live: str) -> None:
    assert str(why(live, "sql")).splitlines() == [
        f"{live}/sql: 1 of 1 engines",
        "  engine-0: refused: LoRA rank 16 is greater than max_lora_rank 8",
        "  engine-1: chosen: was chosen before",
        "  engine-2: refused: is cordoned",
    ]
    with pytest.raises(InvalidManifest, match=f"LoRAAdapter {live}/chat does not exist"):
        why(live, "chat")


def test_a_file_is_planned_beside_what_the_cluster_has_and_changes_nothing(
    live: str, kube: KubeRest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    urgent: dict[str, Any] = adapter("urgent", priority=1, placement={"policy": "BinPack"})
    urgent["metadata"]["namespace"] = live
    file = tmp_path / "urgent.yaml"
    file.write_text(yaml.safe_dump(urgent))
    before = kube.get(path("LoRAAdapter", live))["items"]
    assert main(["plan", "-o", "json", "-f", str(file)]) == 0
    (found,) = json.loads(capsys.readouterr().out)["pools"]
    assert (found["engines"], found["totalEngines"]) == (3, 3)
    chosen = {each["adapter"]: each["chosen"] for each in found["adapters"]}
    assert chosen == {f"{live}/sql": ["engine-1"], f"{live}/urgent": ["engine-0"]}
    assert kube.get(path("LoRAAdapter", live))["items"] == before
