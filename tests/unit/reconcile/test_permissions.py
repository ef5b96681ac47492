"""What is another namespace's is used with a grant of that namespace, and not otherwise."""

from __future__ import annotations

from typing import Any

import pytest
from lorafleet_operator.api.conditions import Reason
from lorafleet_operator.api.v1alpha1 import AdapterGrant
from lorafleet_operator.permissions import refusal
from lorafleet_operator.world import World


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
