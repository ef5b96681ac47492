"""Requests that wait for an adapter: who owns the name, and what those are told that get none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from lorafleet.errors import EngineRejected
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from lorafleet_operator.cluster.reads import EnginePod
from lorafleet_operator.facts import Facts, Placed
from lorafleet_operator.first_requests import Requested, absent, owners
from lorafleet_operator.pool_planner import PoolPlanner
from lorafleet_operator.world import EngineView
from operator_builders import adapter


def test_pods_are_found_by_the_names_that_requests_wait_for_there() -> None:
    requested = Requested()
    assert requested.note("n/a", ["x", "y"]) == {"x", "y"}
    assert requested.note("n/a", ["x", "y"]) == set()
    requested.note("n/b", ["x"])
    assert (requested.pods("x"), requested.pods("y")) == ({"n/a", "n/b"}, {"n/a"})
    requested.note("n/a", ["y"])
    requested.note("n/b", [])
    assert (requested.pods("x"), requested.pods("y")) == (set(), {"n/a"})


def test_a_name_belongs_to_the_oldest_adapter_of_the_pod_s_pools_that_claims_it() -> None:
    one, two = PoolPlanner(), PoolPlanner()
    one.claim("t/young", "sql", "2026-01-02T00:00:00Z")
    one.claim("t/old", "sql", "2026-01-01T00:00:00Z")
    two.claim("t/chat", "chat", "2026-01-01T00:00:00Z")
    found = owners(["sql", "chat", "other"], [one, two])
    assert found == {"sql": "t/old", "chat": "t/chat", "other": None}


UID = "u-0"
REFUSED = {UID: EngineRejected("CUDA error: out of luck")}


@dataclass
class Case:
    placed: Placed | None = field(default_factory=Placed)
    unmet: dict[str, str] = field(default_factory=dict)
    troubles: dict[str, Any] = field(default_factory=dict)
    published: bool = False
    retry: bool = False
    annotations: dict[str, str] = field(default_factory=dict)
    told: str = ""


CASES = {
    "what is served needs no answer": Case(Placed(("engine-0",)), published=True),
    "what is on its way may be waited for": Case(Placed(("engine-0",))),
    "so may what is tried again soon": Case(troubles=REFUSED, retry=True),
    "and what has not been planned": Case(None, {"engine-0": "no room"}),
    "another adapter that owns the name answers itself": Case(
        Placed(lost_name=True), {"engine-0": "no room"}
    ),
    "an engine without room says so": Case(unmet={"engine-0": "no room"}, told="no room"),
    "an engine that refused the content says so": Case(
        Placed(("engine-0",)), troubles=REFUSED, told="CUDA error: out of luck"
    ),
    "nobody brings what is paused": Case(
        Placed(("engine-0",)),
        annotations={"lorafleet.dev/paused": "true"},
        told="paused by annotation",
    ),
}


@pytest.mark.parametrize("sentence", CASES)
def test_what_requests_are_told(sentence: str) -> None:
    case = CASES[sentence]
    made = adapter("sql")
    made.metadata.annotations.update(case.annotations)
    loaded = pb.LoadedAdapter(adapter=made.key, served_name="team-a/sql", published=case.published)
    pod = EnginePod("team-a", "engine-0", UID, "127.0.0.1", ())
    view = EngineView(pod, inventory=pb.Inventory(loaded=[loaded]))
    facts = Facts(made, "2026-01-01T00:00:00Z", placed=case.placed, troubles=case.troubles)
    found = absent(facts, case.unmet, [view], retry=case.retry)
    assert found == ({UID: f"team-a/sql is not served here: {case.told}"} if case.told else {})
