"""What is another namespace's is used with a grant of that namespace, and not otherwise."""

from __future__ import annotations

from typing import Any

import pytest
from known_fleet import Sleeper
from kubernetes.aio.client import ApiClient
from lorafleet_operator.api.conditions import Reason
from lorafleet_operator.api.v1alpha1 import AdapterGrant
from lorafleet_operator.fleet import Fleet
from lorafleet_operator.permissions import refusal, users
from lorafleet_operator.settings import OperatorSettings
from lorafleet_operator.world import World
from operator_builders import known, pool


def grant(*to: dict[str, str], namespace: str = "infra", of: str = "team-a") -> AdapterGrant:
    return AdapterGrant.model_validate(
        {
            "metadata": {"namespace": namespace, "name": "grant"},
            "spec": {"from": [{"namespace": "x"}, {"namespace": of}], "to": list(to)},
        }
    )


def world(*grants: AdapterGrant, **more: Any) -> World:
    by_namespace = {each.metadata.namespace: [each] for each in grants}
    return World({}, {}, {}, {}, (), by_namespace, **more)


POOL = {"kind": "EnginePool", "name": "gpus"}


@pytest.mark.parametrize(
    ("grants", "missing"),
    [
        ([], True),
        ([grant(POOL)], False),
        ([grant({"kind": "EnginePool"})], False),
        ([grant({"kind": "EnginePool", "name": "other"})], True),
        ([grant({"kind": "ServedName"})], True),
        ([grant(POOL, of="team-b")], True),
        ([grant(POOL, namespace="team-a")], True),
        ([grant(POOL, namespace="elsewhere")], True),
    ],
    ids=[
        "no grant",
        "of this pool",
        "of all pools",
        "of another pool",
        "of names",
        "to another namespace",
        "written by the one who wants it",
        "of a third namespace",
    ],
)
def test_a_pool_of_another_namespace_needs_a_grant_there(
    grants: list[AdapterGrant], missing: bool
) -> None:
    found = refusal(world(*grants), "team-a", "infra/gpus", "team-a/sql")
    line = "namespace infra holds no AdapterGrant from namespace team-a to EnginePool gpus"
    assert found == ((Reason.NOT_GRANTED, line) if missing else None)


def test_a_pool_of_its_own_namespace_needs_none() -> None:
    assert refusal(world(), "team-a", "team-a/gpus", "team-a/sql") is None


NAMES = {"namespaces": {"team-b": {}, "team-a": {}}}


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("team-b/chat", True),
        ("team-b/", True),
        ("team-b", False),
        ("team-b-chat", False),
        ("team-a/anything/else", False),
        ("org/model", False),
        ("Team-B/chat", False),
    ],
)
def test_a_name_below_another_namespace_is_that_namespaces(name: str, missing: bool) -> None:
    found = refusal(world(**NAMES), "team-a", "team-a/pool", name)
    line = f"namespace team-b holds no AdapterGrant from namespace team-a to ServedName {name}"
    assert found == ((Reason.NOT_GRANTED, line) if missing else None)


def test_a_name_can_be_granted_alone_or_with_all_others() -> None:
    for to in ({"kind": "ServedName", "name": "team-b/chat"}, {"kind": "ServedName"}):
        given = world(grant(to, namespace="team-b"), **NAMES)
        assert refusal(given, "team-a", "team-a/pool", "team-b/chat") is None
        other = refusal(given, "team-a", "team-a/pool", "team-b/sql")
        assert (other is None) == ("name" not in to)


def test_a_namespace_is_known_by_what_is_in_it_where_namespaces_are_not_watched() -> None:
    there = World({}, {}, {}, {"team-b": ["team-b/x"]}, ())
    assert refusal(there, "team-a", "team-a/pool", "team-b/chat")
    assert refusal(World({}, {}, {}, {}, ()), "team-a", "team-a/pool", "team-b/chat") is None


async def test_a_grant_that_is_taken_back_ends_the_passes_that_use_it_and_no_others() -> None:
    """Of team-a are the adapters; sql is in another namespace's pool and chat has its name."""
    adapters = {
        "infra/gpus": [known("sql", poolRef={"name": "gpus", "namespace": "infra"})],
        "team-a/pool": [known("chat", servedName="infra/chat"), known("own")],
    }
    grants = {"infra": [grant({"kind": "ServedName"})]}
    there = World({}, {"team-a": [pool()]}, adapters, {"infra": ["infra/x"]}, (), grants)
    sleepers = {f"team-a/{name}": Sleeper() for name in ("sql", "chat", "own")}
    async with ApiClient() as api:
        fleet = Fleet(OperatorSettings(), there, api)
        for key, sleeper in sleepers.items():
            fleet.wakeups.add(key, sleeper)
        fleet.grants_changed("infra")
        await fleet.links.close()
    assert {key for key, each in sleepers.items() if each.cuts} == {"team-a/sql"}
    woken = {key for key, each in sleepers.items() if each.woken.is_set()}
    assert woken == {"team-a/sql", "team-a/chat"}


def test_who_is_served_by_a_name_of_before_uses_the_grants_for_it() -> None:
    adapters = [known("new", servedName="team-a/taken"), known("own")]
    there = World({}, {}, {"team-a/pool": adapters}, {}, ())
    served = [("team-a/new", "infra/old"), ("team-a/own", "team-a/own"), ("team-a/gone", "infra/x")]
    assert [each.key for each in users(there, "infra", served)] == ["team-a/new"]
    assert list(users(there, "infra", served[1:])) == []
    assert list(users(there, "team-a", served)) == [], "nobody needs a grant of his own namespace"


async def test_only_a_namespace_that_somebody_asked_about_makes_a_pool_look_at_its_tenants() -> (
    None
):
    by_label = {"name": "a", "namespaceSelector": {"matchLabels": {"team": "a"}}}
    labels: dict[str, dict[str, str]] = {"team-a": {}, "other": {}}
    made = pool(tenants=[by_label])
    there = World({}, {"team-a": [made]}, {}, {}, (), namespaces=labels)
    async with ApiClient() as api:
        fleet = Fleet(OperatorSettings(), there, api)
        planner, looks = fleet.planner(made.key), []
        planner.look_at_engines(made, there, fleet.links, 0.0)
        assert fleet.tenant(made.key, "team-a") == "/team-a"
        for name in ("other", "team-a"):
            labels[name]["team"] = "a"
            fleet.namespace_changed(name, names_too=False)
            looks.append(planner.tenants_stale)
        planner.look_at_engines(made, there, fleet.links, 0.0)
        await fleet.links.close()
    assert looks == [False, True]
    assert {fleet.tenant(made.key, name) for name in labels} == {"a"}
