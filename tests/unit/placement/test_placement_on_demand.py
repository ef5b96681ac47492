"""Policy OnDemand: where requests wait, first to give way, the longest idle before the others."""

from __future__ import annotations

from typing import Any

from lorafleet_operator.api.conditions import Reason
from lorafleet_operator.api.v1alpha1 import EngineHealth
from lorafleet_operator.placement import (
    AdapterDemand,
    EngineSnapshot,
    Policy,
    Residency,
    displaced_from,
    plan,
    planned,
    unmet,
)
from placement_fleets import carried_out


def engine(name: str = "p-0", **facts: Any) -> EngineSnapshot:
    room = {"arena_limit_bytes": 100, "arena_largest_free_bytes": 100, "max_adapters": 2}
    return EngineSnapshot(name, **{**room, **facts})


def on_demand(key: str, *requested: str, **facts: Any) -> AdapterDemand:
    values = {"size_bytes": 10, "policy": Policy.ON_DEMAND, **facts}
    return AdapterDemand(key, requested=frozenset(requested), **values)


def always(key: str, **facts: Any) -> AdapterDemand:
    return AdapterDemand(key, size_bytes=10, **facts)


def loaded(*keys: str, **facts: Any) -> EngineSnapshot:
    return engine(loaded=frozenset(keys), **facts)


def test_it_is_nowhere_until_a_request_asks_and_stays_where_it_was_brought() -> None:
    engines = [engine("p-0"), engine("p-1")]
    assert plan([on_demand("t/a")], engines).assignments == {"t/a": ()}
    asked = plan([on_demand("t/a", "p-1")], engines)
    assert asked.assignments == {"t/a": ("p-1",)}
    assert asked.why["t/a"].engines[1].text == "a request asked for it there"
    assert plan([on_demand("t/a")], [loaded("t/a")]).assignments == {"t/a": ("p-0",)}


def test_it_goes_where_nobody_asks_for_it_any_more() -> None:
    idle = on_demand("t/a", idle=frozenset(["p-0"]))
    planner = planned([idle], [loaded("t/a")])
    entry = planner.entries["t/a"]
    assert entry.chosen == {}
    assert displaced_from(planner, entry) == {"p-0"}


def test_whatever_is_not_on_demand_goes_before_it_however_important() -> None:
    found = plan([on_demand("t/a", priority=9), always("t/b"), always("t/c")], [loaded("t/a")])
    assert found.assignments == {"t/a": (), "t/b": ("p-0",), "t/c": ("p-0",)}


def test_a_request_takes_the_place_of_what_has_been_idle_longest() -> None:
    here = loaded("t/a", "t/b", idle_seconds={"t/a": 5, "t/b": 60})
    planner = planned([on_demand("t/a"), on_demand("t/b")], [here])
    planner.set_adapter(on_demand("t/c", "p-0"))
    assert planner.settle() == {"t/b", "t/c"}
    assert planner.entries["t/c"].chosen == {"p-0": "takes the place of t/b (on demand)"}


def test_one_that_gave_its_place_must_be_asked_for_again() -> None:
    planner = planned([on_demand("t/a", "p-0")], [engine(max_adapters=1)])
    planner.set_engine(loaded("t/a", max_adapters=1))
    planner.settle()
    planner.set_adapter(on_demand("t/b", "p-0"))
    assert planner.settle() == {"t/a", "t/b"}
    planner.set_engine(loaded("t/b", max_adapters=1))
    assert planner.settle() == set()
    assert planner.entries["t/a"].chosen == {}


def test_two_that_requests_wait_for_do_not_push_each_other_out() -> None:
    planner = planned([on_demand("t/a", "p-0")], [engine(max_adapters=1)])
    planner.set_adapter(on_demand("t/b", "p-0"))
    assert planner.settle() == set()
    assert unmet(planner, planner.entries["t/b"], ["p-0"]) == {"p-0": "has 1 of 1 adapters"}


def test_those_with_a_place_of_their_own_or_always_loaded_are_safe_from_requests() -> None:
    safe = [always("t/a"), on_demand("t/b", residency=Residency.HOST)]
    planner = planned([*safe, on_demand("t/c", "p-0", priority=9)], [loaded("t/a", "t/b")])
    assert planner.entries["t/c"].chosen == {}
    assert unmet(planner, planner.entries["t/c"], ["p-0", "elsewhere"]) == {
        "p-0": "has 2 of 2 adapters; t/a, not on demand"
    }


def test_one_that_no_engine_could_ever_take_says_so_and_waits_for_no_request() -> None:
    wrong = on_demand("t/a", base_model="y")
    found = plan([wrong], [engine("p-0", base_models=("x",)), engine("p-1", base_models=("z",))])
    assert found.blocked["t/a"] == (
        Reason.BASE_MODEL_MISMATCH,
        "0 of 1 engines: p-0: serves x, the adapter wants y; p-1: serves z, the adapter wants y",
    )
    # One that only starts, or is cordoned, may take it later: a request finds out.
    for other in (engine("p-1", cordoned=True), engine("p-1", health=EngineHealth.STARTING)):
        assert plan([wrong], [engine("p-0", base_models=("x",)), other]).blocked == {}


def test_an_engine_that_cannot_take_it_is_not_chosen_for_a_request() -> None:
    wrong = on_demand("t/a", "p-0", "p-1", base_model="y")
    found = planned([wrong], [engine("p-0", base_models=("x",)), engine("p-1", cordoned=True)])
    assert unmet(found, found.entries["t/a"], ["p-0", "p-1"]) == {
        "p-0": "serves x, the adapter wants y",
        "p-1": "is cordoned",
    }


def spread(key: str, *requested: str, **facts: Any) -> AdapterDemand:
    return on_demand(key, *requested, policy=Policy.SPREAD, **facts)


def test_a_planner_that_starts_takes_no_replica_for_a_guest() -> None:
    """Else who waits for the room would push the replica out, which nobody may."""
    engines = [engine("p-0", base_models=("x",)), engine("p-1", max_adapters=1)]
    adapters = [spread("t/a", "p-0", refused={"p-0": "no"}), always("t/b", base_model="y")]
    planner = planned(adapters[:1], engines)
    planner.set_adapter(adapters[1])
    planner.settle()
    again = planned(*carried_out(adapters, engines, planner.entries))
    for each in (planner, again):
        assert each.entries["t/a"].guests == {"p-0"}
        assert each.entries["t/a"].chosen.keys() == {"p-0", "p-1"}
        assert each.entries["t/b"].chosen == {}


def test_a_guest_takes_the_place_of_a_replica_that_was_lost() -> None:
    planner = planned([spread("t/a", "p-1")], [engine("p-0"), engine("p-1", max_adapters=1)])
    assert planner.entries["t/a"].guests == {"p-1"}
    planner.drop_engine("p-0")
    assert planner.settle() == {"t/a"}
    assert planner.entries["t/a"].guests == frozenset()
    planner.set_adapter(always("t/b"))
    assert planner.settle() == set()  # a guest would give way


def test_a_guest_takes_the_place_of_a_replica_that_a_more_important_adapter_displaced() -> None:
    engines = [engine(name, max_adapters=1) for name in ("p-0", "p-1")]
    planner = planned([spread("t/a", "p-1")], engines)
    planner.set_adapter(spread("t/b", priority=1, refused={"p-1": "no"}))
    assert planner.settle() == {"t/a", "t/b"}
    assert planner.entries["t/a"].chosen.keys() == {"p-1"}
    assert planner.entries["t/a"].guests == frozenset()
    planner.set_adapter(always("t/c"))
    assert planner.settle() == set()  # a guest would give way


def test_where_it_has_too_few_replicas_a_request_brings_one_of_them() -> None:
    only = engine(loaded=frozenset(["t/b"]), max_adapters=1)
    asked = spread("t/a", "p-0", refused={"p-0": "no"})
    planner = planned([asked, on_demand("t/b")], [only])
    assert planner.entries["t/a"].chosen.keys() == {"p-0"}
    assert planner.entries["t/a"].guests == frozenset()
