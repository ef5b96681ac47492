"""Which engines an adapter's Services name, slice by slice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lorafleet_operator.cluster.reads import EnginePod
from lorafleet_operator.routing.endpoints import (
    MOST_ENDPOINTS,
    Backend,
    Endpoint,
    HttpRoute,
    Intent,
    named,
    sliced,
    weights,
)
from lorafleet_operator.routing.names import Role

NEW, OLD = "sha256:new", "sha256:old"
INTENT = Intent("demo", "pirate", "uid", "demo/pirate", 8000)
GATEWAY = HttpRoute("gateway", "demo", hostname="pirate.example")
SPLIT = replace(INTENT, split=True, http_route=GATEWAY, trial=NEW)


def backend(
    number: int, digest: str = NEW, *, heard: bool = True, leaves: bool = False, **pod: Any
) -> Backend:
    fields: dict[str, Any] = {
        "node": f"node-{number}",
        "running": not leaves,
        "ready": True,
        "terminating": leaves,
    }
    address = f"10.0.{number // 250}.{number % 250 + 1}"
    values = {"ip": address, **fields, **pod}
    name = f"engine-{number:03}"
    pod_of = EnginePod(namespace="demo", name=name, uid=f"uid-{number}", labels=(), **values)
    return Backend(pod_of, heard, digest)


def seen(groups: dict[Role, list[Endpoint]], role: Role = Role.ADAPTER) -> list[str]:
    """The engines of a group, with a mark for those that are not ready or are terminating."""
    return [
        each.pod.removeprefix("engine-00")
        + ("" if each.ready else "!")
        + ("t" if each.terminating else "")
        for each in groups[role]
    ]


CASES: dict[str, tuple[list[Backend], set[str], list[str]]] = {
    "those that serve are named": ([backend(1), backend(2)], set(), ["1", "2"]),
    "one that serves the revision before is": ([backend(1), backend(2, OLD)], set(), ["1", "2"]),
    "one that serves nothing is not": ([backend(1), backend(2, "")], {"uid-2"}, ["1"]),
    "one whose pod is not ready is not": ([backend(1), backend(2, ready=False)], {"uid-2"}, ["1"]),
    "one without an address is not": ([backend(1), backend(2, ip="")], set(), ["1"]),
    "an address that no slice may hold is not": (
        [backend(1), backend(2, ip="127.0.0.2"), backend(3, ip="fe80::1"), backend(4, ip="::1")],
        set(),
        ["1"],
    ),
    "one that is about to let go is not": ([backend(1), backend(9)], {"uid-9"}, ["1"]),
    "a silent one is not while others serve": (
        [backend(1), backend(2, heard=False)],
        {"uid-2"},
        ["1"],
    ),
    "silent ones stay while nobody is known to serve": (
        [
            backend(1, heard=False),
            backend(2, "", heard=False),
            backend(3, heard=False, ready=False),
        ],
        {"uid-1", "uid-2", "uid-3"},
        ["1", "2"],
    ),
    "a silent one is not named anew": ([backend(1, heard=False)], set(), []),
    "a vLLM that starts is in contact and serves nothing": ([backend(1, "")], {"uid-1"}, []),
    "a pod that is deleted ends, and serves as long as it is ready": (
        [backend(1), backend(2, "", heard=False, leaves=True)],
        {"uid-2"},
        ["1", "2!t"],
    ),
    "a pod that is deleted is not named anew": ([backend(2, heard=False, leaves=True)], set(), []),
}


@pytest.mark.parametrize("case", CASES)
def test_a_service_names(case: str) -> None:
    backends, before, expected = CASES[case]
    intent = replace(INTENT, leaving=frozenset({"uid-9"}))
    assert seen(named(intent, backends, {Role.ADAPTER: before})) == expected


def test_what_an_endpoint_says_of_a_pod_that_is_deleted() -> None:
    pods = [backend(n, leaves=True, ready=n == 1) for n in (1, 2)]
    (going, gone) = named(INTENT, pods, {Role.ADAPTER: {"uid-1", "uid-2"}})[Role.ADAPTER]
    assert (going.ready, going.serving, going.terminating) == (False, True, True)
    assert (gone.ready, gone.serving, gone.terminating) == (False, False, True)


def test_a_trial_has_services_of_its_own() -> None:
    groups = named(SPLIT, [backend(1), backend(2, OLD), backend(3, OLD)], {})
    assert seen(groups) == ["1", "2", "3"]
    assert seen(groups, Role.STABLE) == ["2", "3"]
    assert seen(groups, Role.CANARY) == ["1"]
    over = named(replace(SPLIT, trial=""), [backend(1), backend(2)], {})
    assert (seen(over, Role.STABLE), seen(over, Role.CANARY)) == (["1", "2"], [])


def test_a_silent_engine_stays_on_its_side_of_a_trial() -> None:
    before = {Role.ADAPTER: {"uid-1", "uid-2"}, Role.CANARY: {"uid-1"}, Role.STABLE: {"uid-2"}}
    groups = named(SPLIT, [backend(1, "", heard=False), backend(2, "", heard=False)], before)
    assert (seen(groups, Role.CANARY), seen(groups, Role.STABLE)) == (["1"], ["2"])


WEIGHTS = {
    "no trial": (replace(SPLIT, trial=""), [NEW, NEW], {Role.STABLE: 100, Role.CANARY: 0}),
    "a share of requests": (
        replace(SPLIT, percent=5),
        [NEW, OLD],
        {Role.STABLE: 95, Role.CANARY: 5},
    ),
    "the share of engines": (SPLIT, [NEW, OLD, OLD, OLD], {Role.STABLE: 75, Role.CANARY: 25}),
    "nobody left on the old": (
        replace(SPLIT, percent=5),
        [NEW],
        {Role.STABLE: 0, Role.CANARY: 100},
    ),
    "nobody on the new": (replace(SPLIT, percent=5), [OLD], {Role.STABLE: 100, Role.CANARY: 0}),
    "one Service": (replace(SPLIT, split=False), [NEW, OLD], {Role.ADAPTER: 100}),
}


@pytest.mark.parametrize("case", WEIGHTS)
def test_weights_of_a_route(case: str) -> None:
    intent, digests, expected = WEIGHTS[case]
    backends = [backend(number, digest) for number, digest in enumerate(digests)]
    assert weights(intent, named(intent, backends, {})) == expected


ENGINES = st.sets(st.integers(0, 700), max_size=350)


@given(ENGINES, ENGINES)
def test_slices_hold_everybody_once_and_those_who_stay_keep_their_place(
    one: set[int], other: set[int]
) -> None:
    def slices(numbers: set[int], before: dict[str, set[str]]) -> dict[str, set[str]]:
        groups = named(INTENT, [backend(n) for n in sorted(numbers)], {})
        made = sliced("lora-pirate", groups[Role.ADAPTER], before)
        assert all(len(each) <= MOST_ENDPOINTS for each in made.values())
        return {name: {each.uid for each in part} for name, part in made.items()}

    first = slices(one, {})
    assert len(first) == max(1, -(-len(one) // MOST_ENDPOINTS))
    second = slices(other, first)
    assert sorted(uid for uids in second.values() for uid in uids) == sorted(
        f"uid-{n}" for n in other
    )
    place = {uid: name for name, uids in first.items() for uid in uids}
    for name, uids in second.items():
        assert all(place.get(uid, name) == name for uid in uids)


def test_addresses_of_two_families_have_slices_of_their_own() -> None:
    pods = [backend(1), replace(backend(2), pod=replace(backend(2).pod, ip="fd00::2"))]
    made = sliced("lora-pirate", named(INTENT, pods, {})[Role.ADAPTER], {})
    assert {name: [e.address for e in part] for name, part in made.items()} == {
        "lora-pirate.v4-0": ["10.0.0.2"],
        "lora-pirate.v6-0": ["fd00::2"],
    }
