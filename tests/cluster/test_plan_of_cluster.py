"""`plan` and the explanation of one adapter, from what a real API server holds."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from kubernetes.aio.config import kube_config
from localcluster import find_binary
from lorafleet_operator.cli import main
from lorafleet_operator.kubectl.cli import main as kubectl_lora
from resource_builders import adapter, grant, path, pool

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kube_rest import KubeRest
    from localcluster import LocalCluster

ENGINE = {"health": "Ready", "maxLoras": 2, "maxCpuLoras": 4, "arenaLimitBytes": 64 << 20}
ENGINES = [
    {**ENGINE, "podName": "engine-0", "maxLoraRank": 8},
    {**ENGINE, "podName": "engine-1", "maxLoraRank": 64, "node": "n1", "zone": "a"},
    {**ENGINE, "podName": "engine-2", "maxLoraRank": 64, "cordoned": True},
    {**ENGINE, "podName": "engine-3", "maxLoraRank": 64},
    {**ENGINE, "podName": "engine-4", "maxLoraRank": 64, "baseModel": "other/base"},
]
DIGEST = "sha256:" + "0a" * 32
SERVES = {"podName": "engine-1", "digest": DIGEST, "tier": "gpu", "published": True, "inFlight": 2}
LACKS = {"message": "module o_proj: engine has no such module", "engines": 1, "pods": ["engine-3"]}
READY = {
    "type": "Ready",
    "status": "True",
    "reason": "Ready",
    "message": "all is well",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}


@pytest.fixture(autouse=True)
def kubectl_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(find_binary("kubectl").parent), prepend=":")


@pytest.fixture
def live(
    kube: KubeRest, namespace: str, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> str:
    """A namespace with a pool of five engines and an adapter that is on the second."""
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(cluster.kubeconfig))
    kube.create(path("EnginePool", namespace), pool(maxAdaptersPerEngine=1))
    kube.merge(
        path("EnginePool", namespace, "main", "status"),
        {"status": {"totalEngines": 5, "engines": ENGINES}},
    )
    spread = {"policy": "Spread", "replicas": 1}
    kube.create(path("LoRAAdapter", namespace), adapter("sql", placement=spread))
    status = {
        "observedGeneration": 1,
        "digest": DIGEST,
        "sizeBytes": 2 << 20,
        "rank": 16,
        "desiredEngines": 1,
        "readyEngines": 1,
        "engines": [SERVES],
        "refusals": [LACKS],
        "conditions": [READY],
    }
    kube.merge(path("LoRAAdapter", namespace, "sql", "status"), {"status": status})
    return namespace


def test_an_adapter_of_the_cluster_is_explained_engine_by_engine(
    live: str, cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--kubeconfig", str(cluster.kubeconfig), "-n", live]
    assert kubectl_lora(["why", "sql", *where]) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == f"LoRAAdapter {live}/sql, served as {live}/sql, pool {live}/main"
    assert lines[1] == "revision sha256:0a0a0a0a0a0a, 1 of 1 engines serve it"
    assert "Ready      True    Ready   all is well" in lines
    engines = lines[lines.index(next(line for line in lines if line.startswith("ENGINE"))) :]
    assert engines == [
        "ENGINE    PLAN     HAS                        TIER  WHY",
        "engine-0  refused  -                          -     LoRA rank 16 is greater than max_lora_rank 8",
        "                                                    (0 adapters, 0 of 4 places kept, 0 of 2 slots pinned, 0.0 MiB of 64.0 MiB, rank up to 8)",
        "engine-1  chosen   wanted, served, 2 running  gpu   has it already",
        "                                                    (1 adapters, 0 of 4 places kept, 0 of 2 slots pinned, 2.0 MiB of 64.0 MiB, rank up to 64, node n1, zone a, content staged)",
        "engine-2  refused  -                          -     is cordoned",
        "                                                    (0 adapters, 0 of 4 places kept, 0 of 2 slots pinned, 0.0 MiB of 64.0 MiB, rank up to 64)",
        "engine-3  refused  -                          -     module o_proj: engine has no such module",
        "                                                    (0 adapters, 0 of 4 places kept, 0 of 2 slots pinned, 0.0 MiB of 64.0 MiB, rank up to 64)",
        "engine-4  refused  -                          -     serves other/base, the adapter wants tiny/qwen3-dense",
        "                                                    (0 adapters, 0 of 4 places kept, 0 of 2 slots pinned, 0.0 MiB of 64.0 MiB, rank up to 64)",
    ]


def test_programs_get_the_same_as_json(
    live: str, cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--kubeconfig", str(cluster.kubeconfig), "-n", live]
    assert kubectl_lora(["why", "sql", "-o", "json", *where]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["adapter"], found["pool"], found["chosen"]) == (
        f"{live}/sql",
        f"{live}/main",
        ["engine-1"],
    )
    assert [(each["engine"], each["verdict"], each["reason"]) for each in found["engines"]] == [
        ("engine-0", "refused", "RankTooHigh"),
        ("engine-1", "chosen", ""),
        ("engine-2", "refused", "NoMatchingEngines"),
        ("engine-3", "refused", "EngineRejected"),
        ("engine-4", "refused", "BaseModelMismatch"),
    ]
    assert found["engines"][1]["has"]["published"] is True
    assert found["conditions"][0]["type"] == "Ready"


def test_what_is_not_there_is_told_in_one_line(
    live: str, cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--kubeconfig", str(cluster.kubeconfig), "-n", live]
    assert kubectl_lora(["why", "chat", *where]) == 1
    assert capsys.readouterr().err == f"kubectl lora: LoRAAdapter {live}/chat does not exist\n"
    assert kubectl_lora(["why", "sql", *where, "--context", "nowhere"]) == 1
    said = capsys.readouterr().err
    assert "nowhere" in said
    assert said.count("\n") == 1


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
    assert (found["engines"], found["totalEngines"]) == (5, 5)
    chosen = {each["adapter"]: each["chosen"] for each in found["adapters"]}
    assert chosen == {f"{live}/sql": ["engine-1"], f"{live}/urgent": ["engine-0"]}
    assert kube.get(path("LoRAAdapter", live))["items"] == before


@pytest.fixture
def guest(kube: KubeRest, namespace: str) -> Iterator[str]:
    """A namespace of the same tenant as its adapters, which the pool's namespace lets in."""
    name = f"{namespace}-guest"
    kube.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": {"team": "guests"}}})
    kube.create(path("AdapterGrant", namespace), grant(**{"from": [{"namespace": name}]}))
    yield name
    kube.delete(f"/api/v1/namespaces/{name}")


def test_adapters_of_other_namespaces_their_tenants_and_names_count_as_for_the_operator(
    guest: str,
    namespace: str,
    kube: KubeRest,
    cluster: LocalCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(cluster.kubeconfig))
    labels = {"matchLabels": {"team": "guests"}}
    tenant = {"name": "guests", "namespaceSelector": labels, "quota": {"adapters": 1}}
    kube.create(path("EnginePool", namespace), pool(tenants=[tenant]))
    kube.merge(
        path("EnginePool", namespace, "main", "status"),
        {"status": {"totalEngines": 1, "engines": [ENGINES[1]]}},
    )
    there = {"poolRef": {"name": "main", "namespace": namespace}}
    kube.create(path("LoRAAdapter", guest), adapter("first", **there))
    taken = {"servedName": f"{guest}/first"}
    kube.create(path("LoRAAdapter", namespace), adapter("thief", **taken))
    more: dict[str, Any] = adapter("more", **there)
    more["metadata"]["namespace"] = guest
    (tmp_path / "more.yaml").write_text(yaml.safe_dump(more))
    assert main(["plan", "-o", "json", "-f", str(tmp_path / "more.yaml")]) == 0
    (found,) = json.loads(capsys.readouterr().out)["pools"]
    told = {each["adapter"]: (each["chosen"], each["blocked"]) for each in found["adapters"]}
    missing = f"namespace {guest} holds no AdapterGrant from namespace {namespace} to ServedName"
    assert told == {
        f"{guest}/first": (["engine-1"], None),
        f"{guest}/more": (
            [],
            {"reason": "QuotaExceeded", "message": "tenant guests has 1 of 1 adapters"},
        ),
        f"{namespace}/thief": (
            [],
            {"reason": "NotGranted", "message": f"{missing} {guest}/first"},
        ),
    }
    where = ["--kubeconfig", str(cluster.kubeconfig), "-o", "json"]
    for key, (chosen, blocked) in told.items():
        of, _, name = key.partition("/")
        if name == "more":
            continue  # it does not exist yet
        assert kubectl_lora(["why", name, "-n", of, *where]) == 0
        plan = json.loads(capsys.readouterr().out)
        assert (plan["chosen"], plan["blocked"]) == (chosen, blocked)
