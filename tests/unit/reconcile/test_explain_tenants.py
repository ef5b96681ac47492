"""`why` of objects as an API server gives them: names, grants and tenants count as for the operator."""

from __future__ import annotations

from typing import Any

from lorafleet_operator.explain import why

MIB = 1 << 20
V1 = "lorafleet.dev/v1alpha1"


def pool(name: str = "pool", *engines: str, **spec: Any) -> dict[str, Any]:
    size = 64 * MIB
    known = [
        {"podName": each, "health": "Ready", "maxLoras": 4, "arenaLimitBytes": size}
        for each in engines
    ]
    return {
        "apiVersion": V1,
        "kind": "EnginePool",
        "metadata": {"namespace": "infra", "name": name},
        "spec": {"selector": {"matchLabels": {"app": "vllm"}}, "baseModel": "tiny", **spec},
        "status": {"engines": known},
    }


def adapter(key: str, day: int, into: str = "pool", **spec: Any) -> dict[str, Any]:
    namespace, _, name = key.partition("/")
    return {
        "apiVersion": V1,
        "kind": "LoRAAdapter",
        "metadata": {
            "namespace": namespace,
            "name": name,
            "generation": 1,
            "creationTimestamp": f"2026-01-{day:02}T00:00:00Z",
        },
        "spec": {
            "baseModel": "tiny",
            "poolRef": {"name": into, "namespace": "infra"},
            "source": {"http": {"url": "https://example.test/x"}},
            **spec,
        },
        "status": {"observedGeneration": 1, "sizeBytes": 2 * MIB, "rank": 8},
    }


def grant(namespace: str, guest: str, **to: str) -> dict[str, Any]:
    return {
        "apiVersion": V1,
        "kind": "AdapterGrant",
        "metadata": {"namespace": namespace, "name": f"to-{guest}"},
        "spec": {"from": [{"namespace": guest}], "to": [to]},
    }


def namespace(name: str, **labels: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def told(found: list[dict[str, Any]], key: str) -> tuple[tuple[str, ...], str]:
    """Return the engines, and what is missing."""
    plan = why(found, key).plan
    assert plan is not None
    return plan.chosen, ": ".join(plan.blocked or ())


def test_an_engine_that_a_request_asked_is_told_of_beside_the_replicas() -> None:
    found = adapter("infra/a", 1, placement={"policy": "Spread", "replicas": 1})
    served = {"tier": "gpu", "published": True, "digest": "sha256:" + "a" * 64}
    found["status"]["engines"] = [
        {"podName": "e-0", **served},
        {"podName": "e-1", "guest": True, **served},
    ]
    objects = [found, pool("pool", "e-0", "e-1", "e-2")]
    assert told(objects, "infra/a") == (("e-0", "e-1"), "")
    plan = why(objects, "infra/a").plan
    assert plan is not None
    assert [line.text for line in plan.engines] == [
        "has it already",
        "has it already, beside its replicas: a request asked for it there",
        "2 of 2 engines chosen",
    ]


def test_guests_take_room_and_the_quota_of_their_tenant_is_one_for_its_namespaces() -> None:
    entry = {
        "name": "guests",
        "namespaceSelector": {"matchLabels": {"team": "g"}},
        "quota": {"adapters": 2},
    }
    found = [
        pool("pool", "e-0", tenants=[entry]),
        *(grant("infra", each, kind="EnginePool") for each in ("g1", "g2")),
        *(namespace(each, team="g") for each in ("g1", "g2")),
        adapter("g1/a", 1),
        adapter("g2/a", 2),
        adapter("g2/b", 3),
        adapter("infra/own", 4),
    ]
    assert told(found, "g1/a") == told(found, "g2/a") == told(found, "infra/own") == (("e-0",), "")
    assert told(found, "g2/b") == ((), "QuotaExceeded: tenant guests has 2 of 2 adapters")


def test_a_name_is_the_older_adapters_also_across_pools_that_share_an_engine() -> None:
    name = {"servedName": "sql"}
    found = [
        pool("pool", "e-0"),
        pool("other", "e-0", "e-1"),
        pool("apart", "e-2"),
        adapter("infra/old", 1, "other", **name),
        adapter("infra/young", 2, **name),
        adapter("infra/far", 3, "apart", **name),
    ]
    assert told(found, "infra/old")[0] == ("e-0", "e-1")
    assert told(found, "infra/young") == ((), "NameTaken: served name sql is taken by infra/old")
    assert told(found, "infra/far") == (("e-2",), "")


def test_who_may_not_be_there_owns_no_name() -> None:
    found = [
        pool("pool", "e-0"),
        adapter("guest/old", 1, servedName="sql"),
        adapter("infra/young", 2, servedName="sql"),
    ]
    line = "namespace infra holds no AdapterGrant from namespace guest to EnginePool pool"
    assert told(found, "guest/old") == ((), f"NotGranted: {line}")
    assert told(found, "infra/young") == (("e-0",), "")
    granted = [*found, grant("infra", "guest", kind="EnginePool")]
    assert told(granted, "guest/old") == (("e-0",), "")
    assert told(granted, "infra/young")[1] == "NameTaken: served name sql is taken by guest/old"


def test_a_name_of_another_namespace_needs_its_grant() -> None:
    found = [pool("pool", "e-0"), adapter("infra/a", 1, servedName="team-z/a")]
    assert told(found, "infra/a") == (("e-0",), ""), "nobody knows such a namespace"
    found.append(namespace("team-z"))
    line = "namespace team-z holds no AdapterGrant from namespace infra to ServedName team-z/a"
    assert told(found, "infra/a") == ((), f"NotGranted: {line}")
    found.append(grant("team-z", "infra", kind="ServedName", name="team-z/a"))
    assert told(found, "infra/a") == (("e-0",), "")


def test_what_is_served_from_the_arena_counts_as_there() -> None:
    made = adapter("infra/a", 1, residency="onDemand", placement={"policy": "OnDemand"})
    entry = {"podName": "e-0", "tier": "staged", "published": True, "digest": "sha256:" + "a" * 64}
    made["status"]["engines"] = [entry]
    assert told([pool("pool", "e-0", "e-1"), made], "infra/a") == (("e-0",), "")
