"""The installed CRDs: established, structural, explained, printed, with a status of their own."""

from __future__ import annotations

import subprocess
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from kube_rest import CRDS, TABLE, KubeRest
from localcluster import LocalCluster, find_binary
from lorafleet_operator.api.conditions import ConditionType, Reason, condition
from lorafleet_operator.api.schema import KINDS, Kind, crd
from lorafleet_operator.api.v1alpha1 import (
    AdapterEngine,
    EnginePool,
    EnginePoolStatus,
    LoRAAdapter,
    LoRAAdapterStatus,
    Residency,
    Tier,
)
from lorafleet_operator.cluster.writes import merge_patch
from resource_builders import API_VERSION, adapter, path, pool

if TYPE_CHECKING:
    from pathlib import Path

Json = dict[str, Any]
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.kind))


@each_kind
def test_the_server_keeps_the_schema_word_by_word(kube: KubeRest, kind: Kind) -> None:
    stored = kube.get(f"{CRDS}/{kind.plural}.lorafleet.dev")
    wanted = crd(kind)["spec"]["versions"][0]
    (version,) = stored["spec"]["versions"]
    assert version["schema"] == wanted["schema"]
    assert version["additionalPrinterColumns"] == wanted["additionalPrinterColumns"]
    conditions = {c["type"]: c["status"] for c in stored["status"]["conditions"]}
    assert conditions["Established"] == "True"
    assert conditions["NamesAccepted"] == "True"
    assert "NonStructuralSchema" not in conditions


def test_short_names_and_category_are_discoverable(kube: KubeRest) -> None:
    found = {r["name"]: r for r in kube.get(f"/apis/{API_VERSION}")["resources"]}
    assert found["loraadapters"]["shortNames"] == ["lora"]
    assert found["enginepools"]["shortNames"] == ["lpool"]
    assert found["loraadapters"]["categories"] == ["lorafleet"]
    assert "loraadapters/status" in found


def test_defaults_of_the_server_are_those_of_the_model(kube: KubeRest, namespace: str) -> None:
    stored = kube.create(path("LoRAAdapter", namespace), adapter())
    assert stored["spec"] == LoRAAdapter.model_validate(adapter()).spec.to_api()
    stored = kube.create(path("EnginePool", namespace), pool())
    assert stored["spec"] == EnginePool.model_validate(pool()).spec.to_api()


def full_status() -> LoRAAdapterStatus:
    observed = condition(
        ConditionType.READY, False, Reason.STAGING, "4 of 9 MiB", generation=1, now=NOW
    )
    return LoRAAdapterStatus(
        observed_generation=1,
        digest="sha256:" + "a" * 64,
        served_name="t/sql",
        residency=Residency.HOST,
        size_bytes=3 << 30,
        rank=8,
        desired_engines=2,
        ready_engines=1,
        engines_summary="1/2",
        tier_summary="gpu",
        engines=[
            AdapterEngine(
                pod_name="p-0", engine="e1", tier=Tier.GPU, published=True, last_transition_time=NOW
            )
        ],
        history=["sha256:" + "b" * 64],
        conditions=[observed],
    )


def test_a_status_comes_back_as_it_was_written(kube: KubeRest, namespace: str) -> None:
    kube.create(path("LoRAAdapter", namespace), adapter())
    written = full_status()
    stored = kube.merge(
        path("LoRAAdapter", namespace, "sql", "status"), {"status": written.to_api()}
    )
    assert LoRAAdapter.model_validate(stored).status == written
    assert stored["metadata"]["generation"] == 1


def test_a_patch_removes_what_the_new_status_no_longer_says(kube: KubeRest, namespace: str) -> None:
    kube.create(path("LoRAAdapter", namespace), adapter())
    target = path("LoRAAdapter", namespace, "sql", "status")
    old, new = full_status().to_api(), LoRAAdapterStatus(observed_generation=2).to_api()
    kube.merge(target, {"status": old})
    stored = kube.merge(target, {"status": merge_patch(old, new)})
    assert LoRAAdapter.model_validate(stored).status == LoRAAdapterStatus(observed_generation=2)
    assert "rank" not in stored["status"]


def test_a_pool_status_comes_back_as_it_was_written(kube: KubeRest, namespace: str) -> None:
    kube.create(path("EnginePool", namespace), pool())
    written = EnginePoolStatus.model_validate(
        {
            "observedGeneration": 1,
            "totalEngines": 1,
            "enginesSummary": "0/1",
            "engines": [{"podName": "p-0", "health": "Stock", "arenaLimitBytes": 1 << 40}],
        }
    )
    stored = kube.merge(
        path("EnginePool", namespace, "main", "status"), {"status": written.to_api()}
    )
    assert EnginePool.model_validate(stored).status == written


def test_spec_and_status_have_separate_writers(kube: KubeRest, namespace: str) -> None:
    created = kube.create(path("LoRAAdapter", namespace), {**adapter(), "status": {"rank": 4}})
    assert "status" not in created
    stored = kube.merge(path("LoRAAdapter", namespace, "sql"), {"status": {"rank": 4}})
    assert "status" not in stored
    patch = {"status": {"rank": 4, "unknown": 1}, "spec": {"pinned": True}}
    stored = kube.merge(path("LoRAAdapter", namespace, "sql", "status"), patch)
    assert stored["status"] == {"rank": 4}
    assert stored["spec"]["pinned"] is False


def table(kube: KubeRest, kind: str, namespace: str) -> list[dict[str, Any]]:
    """What `kubectl get -o wide` prints, a dictionary for each row."""
    answer = kube.get(path(kind, namespace), accept=TABLE)
    columns = [column["name"] for column in answer["columnDefinitions"]]
    return [dict(zip(columns, row["cells"], strict=True)) for row in answer["rows"]]


def test_printer_columns_of_adapters(kube: KubeRest, namespace: str) -> None:
    kube.create(path("LoRAAdapter", namespace), adapter("new"))
    kube.create(path("LoRAAdapter", namespace), adapter("sql"))
    kube.merge(path("LoRAAdapter", namespace, "sql", "status"), {"status": full_status().to_api()})
    new, sql = table(kube, "LoRAAdapter", namespace)
    assert list(sql) == [
        "Name", "Base Model", "Engines", "Ready", "Reason", "Tier", "Age", "Residency",
        "Served Name", "Step", "Digest", "Message",
    ]  # fmt: skip
    assert {**sql, "Age": "", "Digest": ""} == {
        "Name": "sql",
        "Base Model": "tiny/qwen3-dense",
        "Engines": "1/2",
        "Ready": "False",
        "Reason": "Staging",
        "Tier": "gpu",
        "Age": "",
        "Residency": "host",
        "Served Name": "t/sql",
        "Step": "",
        "Digest": "",
        "Message": "4 of 9 MiB",
    }
    assert new["Engines"] is None
    assert new["Age"].endswith("s")


def test_printer_columns_of_pools(kube: KubeRest, namespace: str) -> None:
    kube.create(path("EnginePool", namespace), pool())
    conditions = [
        condition(type_, True, reason, "", generation=1, now=NOW).to_api()
        for type_, reason in (
            (ConditionType.ENGINES_READY, Reason.ENGINES_READY),
            (ConditionType.PLUGIN_ACTIVE, Reason.PLUGIN_ACTIVE),
        )
    ]
    status = {"enginesSummary": "3/3", "conditions": conditions}
    kube.merge(path("EnginePool", namespace, "main", "status"), {"status": status})
    (row,) = table(kube, "EnginePool", namespace)
    assert (row["Base Model"], row["Engines"], row["Ready"], row["Plugin"]) == (
        "tiny/qwen3-dense",
        "3/3",
        "True",
        "True",
    )


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("lora", "A LoRA adapter that engines of a pool serve"),
        ("lora.spec.source.http.url", "URL of the folder with both files"),
        ("lora.spec.placement", "Which engines of the pool get the adapter."),
        ("lora.status.engines.tier", "gpu, host, staged or source"),
        ("lpool.spec.hostMemoryBudget", "Most arena bytes"),
    ],
)
@pytest.mark.usefixtures("kube")
def test_kubectl_explains_every_level(
    cluster: LocalCluster, tmp_path: Path, field: str, words: str
) -> None:
    kubectl = [str(find_binary("kubectl")), f"--kubeconfig={cluster.kubeconfig}"]
    command = [*kubectl, f"--cache-dir={tmp_path}", "explain", field]
    deadline = time.monotonic() + 60
    while True:  # the server publishes its OpenAPI a moment after the CRD is established
        said = subprocess.run(command, capture_output=True, text=True, timeout=60)
        text = " ".join(said.stdout.split())
        if words in text or time.monotonic() > deadline:
            break
        time.sleep(0.5)
    assert words in text, said.stderr
