"""The typed resources: defaults, refusals, and the form that goes back to the API."""

from __future__ import annotations

from typing import Any

import pytest
from lorafleet_operator.api import names
from lorafleet_operator.api.quantity import to_bytes
from lorafleet_operator.api.v1alpha1 import (
    AdapterEngine,
    EnginePool,
    LoRAAdapter,
    Placement,
)
from pydantic import ValidationError


def adapter(**spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "sql", "namespace": "team-a", "uid": "u", "generation": 1},
        "spec": {
            "baseModel": "tiny/qwen3",
            "poolRef": {"name": "main"},
            "source": {"http": {"url": "https://models/sql/"}},
            **spec,
        },
    }


def pool(**spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "main", "namespace": "team-a"},
        "spec": {"baseModel": "b", "selector": {"matchLabels": {"app": "vllm"}}, **spec},
    }


def test_defaults_are_those_of_the_crd() -> None:
    spec = LoRAAdapter.model_validate(adapter()).spec
    assert spec.to_api() == {
        "baseModel": "tiny/qwen3",
        "poolRef": {"name": "main"},
        "source": {"http": {"url": "https://models/sql/"}, "pollIntervalSeconds": 60},
        "placement": {"policy": "All"},
        "loader": "direct",
        "pinned": False,
        "priority": 0,
        "rollout": {"maxUnavailable": 0, "maxSurge": "100%", "atomic": False},
        "revisionHistoryLimit": 2,
        "drainTimeoutSeconds": 60,
        "routing": {},
        "allowBaseMismatch": False,
    }


def test_served_name_is_namespace_and_name_unless_the_spec_says_otherwise() -> None:
    assert LoRAAdapter.model_validate(adapter()).served_name == "team-a/sql"
    assert LoRAAdapter.model_validate(adapter(servedName="sql v2")).served_name == "sql v2"


def test_fields_of_a_newer_version_are_ignored() -> None:
    newer = adapter(color="red")
    newer["status"] = {"mood": "good", "rank": 4}
    assert LoRAAdapter.model_validate(newer).status.rank == 4


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"source": {}}, "exactly one of"),
        (
            {"source": {"http": {"url": "http://a"}, "s3": {"bucket": "abc"}}},
            "exactly one of",
        ),
        ({"source": {"http": {"url": "ftp://a"}}}, "must be a URL"),
        (
            {
                "source": {
                    "persistentVolumeClaim": {"claimName": "c"},
                    "credentialsSecretRef": {"name": "s"},
                }
            },
            "no use with persistentVolumeClaim",
        ),
        ({"source": {"persistentVolumeClaim": {"claimName": "c", "path": "a/../b"}}}, ".. segment"),
        ({"source": {"persistentVolumeClaim": {"claimName": "c", "path": "/a"}}}, "begins with /"),
        ({"source": {"s3": {"bucket": "abc", "prefix": "../x"}}}, ".. segment"),
        ({"source": {"gcs": {"bucket": "abc", "prefix": "../x"}}}, ".. segment"),
        ({"source": {"azureBlob": {"account": "A", "container": "abc"}}}, "account"),
        ({"source": {"huggingFace": {"repo": "a/b", "revision": "a/../b"}}}, "must not hold .."),
        ({"source": {"huggingFace": {"repo": "a/b", "path": "/x"}}}, "begins with /"),
        ({"source": {"oci": {"reference": "registry.example/sql"}}}, "registry/repository:tag"),
        ({"source": {"s3": {"bucket": "abc"}, "adapterName": "a.b"}}, "one segment"),
        (
            {"source": {"oci": {"reference": "r/a:b"}, "gcs": {"bucket": "abc"}}},
            "exactly one of source.s3, source.gcs, source.azureBlob, source.http",
        ),
        ({"dropUnmatched": "all"}, "tower"),
        ({"placement": {"replicas": 2}}, "policies Spread and BinPack"),
        ({"servedName": ".."}, "invalid adapter name"),
        ({"revision": "sha256:0"}, "sha256"),
        ({"rollout": {"maxSurge": "1.5%"}}, "a percentage of them such as 25%"),
        ({"rollout": {"maxUnavailable": -1}}, "must be a number of engines such as 1"),
        ({"rollout": {"maxSurge": 0}}, "cannot both be 0"),
        ({"rollout": {"maxSurge": "0%", "maxUnavailable": "0%"}}, "cannot both be 0"),
        ({"rollout": {"atomic": True, "canary": {}}}, "leave canary out, maxSurge at 100%"),
        ({"rollout": {"atomic": True, "maxSurge": "99%"}}, "changes all engines at once"),
        ({"rollout": {"atomic": True, "maxSurge": 3}}, "changes all engines at once"),
        ({"rollout": {"atomic": True, "maxUnavailable": 1}}, "and maxUnavailable at 0"),
        ({"rollout": {"canary": {"engines": 0}}}, "a number of engines from 1"),
        ({"rollout": {"canary": {"engines": "101%"}}}, "a number of engines from 1"),
        ({"rollout": {"canary": {"maxErrorRate": "5.%"}}}, "a percentage of the requests"),
        ({"rollout": {"canary": {"trafficPercent": 101}}}, "less than or equal to 100"),
        ({"loader": "magic"}, "direct"),
    ],
)
def test_wrong_specs_are_refused_with_a_reason(spec: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        LoRAAdapter.model_validate(adapter(**spec))
    assert problem in str(refusal.value)


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        "org/adapter",
        "org_adapter",
        "org/adapter@v2",
        "Org/Adapter",
        "with space",
        "ünïcode",
        "a..b",
        "x" * 253,
    ],
)
def test_names_that_can_be_served(name: str) -> None:
    assert names.served_name_problem(name) is None


@pytest.mark.parametrize(
    "name",
    [
        "",
        "..",
        "../../etc",
        "a/../b",
        "/abs",
        "x" * 254,
        "new\nline",
        "nul\0",
        " edge",
        "a\u202eb",
        "org/a@3f2a9c001122",
    ],
)
def test_names_that_cannot_be_served(name: str) -> None:
    assert str(names.served_name_problem(name)).startswith("invalid adapter name: ")


@pytest.mark.parametrize(
    ("quantity", "number"),
    [(1024, 1024), ("1Ki", 1024), ("8Gi", 8 << 30), ("1.5k", 1500), ("1e3", 1000), ("1500m", 2)],
)
def test_quantities_in_bytes(quantity: str | int, number: int) -> None:
    assert to_bytes(quantity) == number


@pytest.mark.parametrize("quantity", ["", "8 Gi", "Gi", "-1", "0", 0, -5, "8GB", "0x10"])
def test_what_is_no_positive_quantity(quantity: str | int) -> None:
    with pytest.raises(ValueError, match="quantity"):
        to_bytes(quantity)


def test_pool_defaults_and_budget() -> None:
    spec = EnginePool.model_validate(pool(hostMemoryBudget="2Gi")).spec
    assert (spec.sidecar_port, spec.engine_port) == (7070, 8000)
    assert spec.host_memory_budget_bytes == 2 << 30
    assert EnginePool.model_validate(pool()).spec.host_memory_budget_bytes is None


@pytest.mark.parametrize("policy", ["Spread", "BinPack"])
def test_placement_may_name_replicas_where_not_all_engines_are_taken(policy: str) -> None:
    placement = Placement.model_validate({"policy": policy, "replicas": 2})
    assert placement.to_api() == {"policy": policy, "replicas": 2}


def test_a_message_in_a_status_is_one_line_and_cut() -> None:
    entry = AdapterEngine(pod_name="p", message="vLLM said\n  no " + "x" * 2000)
    assert entry.message.startswith("vLLM said no xxx")
    assert len(entry.message) == 1024


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ({}, "shared"),
        ({"pinned": True}, "gpu"),
        ({"residency": "gpu"}, "gpu"),
        ({"pinned": True, "residency": "gpu"}, "gpu"),
        ({"residency": "host"}, "host"),
        ({"residency": "onDemand"}, "onDemand"),
    ],
)
def test_residency_may_be_said_in_two_ways(spec: dict[str, Any], wanted: str) -> None:
    assert LoRAAdapter.model_validate(adapter(**spec)).spec.wanted_residency == wanted


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ({"pinned": True, "residency": "host"}, "pinned: true means residency: gpu"),
        ({"placement": {"policy": "Spread", "idleSeconds": 9}}, "is for policy OnDemand"),
        ({"placement": {"policy": "OnDemand", "replicas": 2}}, "for policies Spread and BinPack"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(spec: dict[str, Any], line: str) -> None:
    with pytest.raises(ValidationError, match=line):
        LoRAAdapter.model_validate(adapter(**spec))
