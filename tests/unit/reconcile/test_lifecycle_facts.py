"""What an engine is waited for, and whom it is kept for: from the plan and what engines serve."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from lorafleet_operator.lifecycle import Served, engine_facts
from lorafleet_operator.placement import AdapterDemand, Policy
from lorafleet_operator.pool_planner import PoolPlanner, snapshot
from lorafleet_operator.traffic import Said
from operator_builders import BASE, engine, loaded, pool

if TYPE_CHECKING:
    from lorafleet_operator.traffic import EngineFacts
    from lorafleet_operator.world import EngineView

GATE = {"gated": True}
NOW = datetime(2026, 11, 30, tzinfo=UTC)


def has(*names: str) -> list[Any]:
    return [loaded(adapter=f"t/{name}", served_name=f"t/{name}") for name in names]


def demand(name: str, **changes: Any) -> AdapterDemand:
    known = {"base_model": BASE, "size_bytes": 1 << 20, "policy": Policy.ALL, **changes}
    return AdapterDemand(f"t/{name}", **known)


def facts(view: EngineView, demands: list[AdapterDemand], *others: EngineView) -> EngineFacts:
    planner = PoolPlanner()
    for each in (view, *others):
        planner.plan.set_engine(snapshot(each, 60, pool().spec))
    for wanted in demands:
        planner.plan.set_adapter(wanted)
    planner.plan.settle()
    return engine_facts(view, planner, Served([view, *others]), None)


def gated(view: EngineView, **changes: Any) -> EngineView:
    return replace(view, pod=replace(view.pod, gated=True, **changes))


def test_an_engine_is_waited_for_what_nothing_is_known_to_keep_from_it() -> None:
    view = gated(engine("e-0", *has("there")))
    demands = [
        demand("there"),
        demand("new", size_bytes=None),
        demand("lost"),
        demand("broken", held_back=True),
        demand("refused", refused={"e-0": "no kernel"}),
    ]
    assert facts(view, demands).missing == ["t/lost", "t/new"]


def test_nobody_looks_for_what_is_missing_where_nobody_waits() -> None:
    demands = [demand("lost")]
    assert facts(engine("e-0"), demands).missing == ()
    warm = Said(True, "Warm", "engine i1: so", NOW)
    assert facts(gated(engine("e-0"), warm=warm), demands).missing == ()
    before = Said(True, "Warm", "engine i0: so", NOW)
    assert facts(gated(engine("e-0"), warm=before), demands).missing == ["t/lost"]


def test_an_engine_that_is_drained_is_kept_for_what_those_that_stay_do_not_serve() -> None:
    labels = (("app", "vllm"), ("lorafleet.dev/drain", "true"))
    view = gated(
        engine("e-0", *has("moved", "moving", "stuck", "unwanted", "asked")), labels=labels
    )
    other = engine("e-1", *has("moved"))
    demands = [
        demand("moved"),
        demand("moving"),
        demand("stuck", size_bytes=1 << 40),
        demand("asked", policy=Policy.ON_DEMAND),
    ]
    assert facts(view, demands, other).kept_for == ["t/moving", "t/stuck"]
