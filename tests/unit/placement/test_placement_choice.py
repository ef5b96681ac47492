"""Which of several engines is chosen, and who gives way: the scores and pre-emption as tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from lorafleet_operator.api.conditions import Reason
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

MIB = 1 << 20


def engine(
    name: str, carrying: int = 0, **facts: Any
) -> tuple[EngineSnapshot, list[AdapterDemand]]:
    """An engine with room for 64 MiB, and adapters that are on it already."""
    others = [f"x/{name}-{number}" for number in range(carrying)]
    defaults: dict[str, Any] = {
        "max_lora_rank": 8,
        "max_loras": 4,
        "max_cpu_loras": 8,
        "arena_limit_bytes": 64 * MIB,
        "arena_largest_free_bytes": 64 * MIB,
        "loaded": frozenset(others),
    }
    carried = [adapter(key, size_bytes=0, current=frozenset({name})) for key in others]
    return EngineSnapshot(name, **{**defaults, **facts}), carried


def adapter(key: str = "t/a", **facts: Any) -> AdapterDemand:
    return AdapterDemand(
        **{"key": key, "policy": Policy.SPREAD, "size_bytes": 2 * MIB, "rank": 8, **facts}
    )


def chosen(demand: AdapterDemand, *fleet: tuple[EngineSnapshot, list[AdapterDemand]]) -> list[str]:
    engines = [snapshot for snapshot, _ in fleet]
    others = [other for _, carried in fleet for other in carried]
    return list(plan([demand, *others], engines).assignments[demand.key])


@pytest.mark.parametrize(
    ("why", "demand", "fleet", "wanted"),
    [
        (
            "the emptiest engine",
            {},
            [engine("p-0", 3), engine("p-1", 1), engine("p-2", 2)],
            ["p-1"],
        ),
        (
            "room is a share of the engine's own places",
            {},
            [engine("p-0", 4, max_cpu_loras=4), engine("p-1", 5, max_cpu_loras=32)],
            ["p-1"],
        ),
        (
            "another zone before an emptier engine",
            {"replicas": 2},
            [engine("p-0", zone="a"), engine("p-1", zone="a"), engine("p-2", 5, zone="b")],
            ["p-0", "p-2"],
        ),
        (
            "another node before an emptier engine",
            {"replicas": 2},
            [engine("p-0", node="a"), engine("p-1", node="a"), engine("p-2", 5, node="b")],
            ["p-0", "p-2"],
        ),
        (
            "an engine with a place in host memory before one where others would be evicted",
            {"digest": "sha256:1"},
            [engine("p-0", 8, staged=frozenset({"sha256:1"})), engine("p-1", 7)],
            ["p-1"],
        ),
        (
            "where the content is staged before an emptier engine",
            {"digest": "sha256:1"},
            [engine("p-0"), engine("p-1", 5, staged=frozenset({"sha256:1"}))],
            ["p-1"],
        ),
        (
            "the smallest rank that is enough before an emptier engine",
            {},
            [engine("p-0", max_lora_rank=64), engine("p-1", 5)],
            ["p-1"],
        ),
        (
            "fewer planned bytes for each rank among equals",
            {"residency": Residency.SHARED},
            [engine("p-0", 1, tensor_parallel_size=2), engine("p-1", 1)],
            ["p-0"],
        ),
        (
            "BinPack: the fullest engine that has a place",
            {"policy": Policy.BIN_PACK, "replicas": 2},
            [engine("p-0", 8), engine("p-1", 7), engine("p-2", 1), engine("p-3", 6)],
            ["p-1", "p-3"],
        ),
        (
            "BinPack: of equals the first by name",
            {"policy": Policy.BIN_PACK},
            [engine("p-1"), engine("p-0")],
            ["p-0"],
        ),
        (
            "BinPack: the emptiest if none has a place left",
            {"policy": Policy.BIN_PACK},
            [engine("p-0", 9), engine("p-1", 8)],
            ["p-1"],
        ),
        (
            "OnDemand: where it is, nowhere else",
            {"policy": Policy.ON_DEMAND, "current": frozenset({"p-0"})},
            [engine("p-0"), engine("p-1", loaded=frozenset({"t/a"})), engine("p-2")],
            ["p-1"],
        ),
        (
            "not the engine that refused the content, if another takes it",
            {"refused": {"p-0": "no"}, "current": frozenset({"p-0"})},
            [engine("p-0"), engine("p-1", 5)],
            ["p-1"],
        ),
        (
            "the engine that refused the content, if there is no other",
            {"refused": {"p-0": "no"}},
            [engine("p-0")],
            ["p-0"],
        ),
        (
            "an engine that serves the adapter keeps it though it refused new content",
            {"refused": {"p-0": "no"}},
            [engine("p-0", loaded=frozenset({"t/a"})), engine("p-1")],
            ["p-0"],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_best_engine_is(
    why: str, demand: dict[str, Any], fleet: list[Any], wanted: list[str]
) -> None:
    if why.startswith("fewer planned bytes"):
        fleet = [(e, [replace(c, size_bytes=2 * MIB) for c in carried]) for e, carried in fleet]
    assert chosen(adapter(**demand), *fleet) == wanted


def test_places_in_host_memory_bound_those_that_keep_one_and_one_stays_free() -> None:
    demands = [adapter(f"t/{number}", residency=Residency.HOST) for number in range(3)]
    result = plan([*demands, adapter("t/shared")], [engine("p-0", max_cpu_loras=3)[0]])
    assert result.assignments["t/1"] == ("p-0",)
    assert result.assignments["t/shared"] == ("p-0",)
    assert result.blocked["t/2"][1].endswith(
        "has 2 adapters that keep their place for 3 (max_cpu_loras), one stays free"
    )


def test_the_least_important_and_as_few_as_will_do_give_way() -> None:
    here = frozenset({"p-0"})
    others = [
        adapter("t/large", size_bytes=30 * MIB, current=here),
        adapter("t/small", size_bytes=4 * MIB, current=here),
        adapter("t/better", size_bytes=28 * MIB, current=here, priority=1),
    ]
    planner = planned(others, [engine("p-0", loaded=frozenset({"t/large"}))[0]])
    planner.set_adapter(adapter("t/urgent", size_bytes=8 * MIB, priority=2))
    assert planner.settle() == {"t/large", "t/urgent"}
    urgent, large = planner.entries["t/urgent"], planner.entries["t/large"]
    assert urgent.chosen == {"p-0": "takes the place of t/large (lower priority)"}
    assert large.chosen == {}
    assert displaced_from(planner, large) == {"p-0"}
    assert displaced_from(planner, urgent) == frozenset()
    assert planner.books.losers == {"t/large"}, "its pass must not go on loading there"
    planner.drop_engine("p-0")
    assert planner.settle() == {"t/small", "t/better", "t/urgent"}
    assert planner.books.losers == set(), "nothing can be loaded where nothing is"


def test_who_gave_way_is_told_to_whom_and_comes_back_when_there_is_room() -> None:
    small = engine("p-0", arena_limit_bytes=8 * MIB, loaded=frozenset({"t/a"}))[0]
    planner = planned([adapter("t/a", size_bytes=6 * MIB)], [small])
    planner.set_adapter(adapter("t/urgent", size_bytes=6 * MIB, priority=1))
    planner.settle()
    demands = [entry.demand for entry in planner.entries.values()]
    assert plan(demands, [small]).blocked["t/a"] == (
        Reason.PREEMPTED,
        "0 of 1 engines: p-0: needs 6.0 MiB, 2.0 MiB of 8.0 MiB are free;"
        " t/urgent of higher priority",
    )
    planner.drop_adapter("t/urgent")
    assert planner.settle() == {"t/a"}
    assert planner.entries["t/a"].chosen == {"p-0": "emptiest engine with room (0 adapters)"}


def test_only_more_important_ones_that_keep_a_slot_take_one_away() -> None:
    pinned = adapter("t/pinned", residency=Residency.GPU)
    asks = adapter("t/asks", residency=Residency.GPU)
    shared = adapter("t/shared", priority=9)
    has = engine("p-0", max_loras=2, loaded=frozenset({"t/pinned", "t/asks", "t/shared"}))[0]
    for taker, blocker, gone in (
        (pinned, "", frozenset()),
        (replace(pinned, priority=5), "; t/pinned of higher priority", {"p-0"}),
    ):
        planner = planned([taker, shared], [has])
        planner.set_adapter(asks)
        planner.settle()
        entry = planner.entries["t/asks"]
        assert displaced_from(planner, entry) == gone, "what it is served as meanwhile stays"
        why = f"has 1 pinned adapters for 2 GPU slots, one stays free{blocker}"
        assert unmet(planner, entry, ["p-0"]) == {"p-0": why}


def test_who_gave_way_goes_where_there_is_room() -> None:
    engines = [engine(name, max_adapters=1)[0] for name in ("p-0", "p-1")]
    here = frozenset({"p-0"})
    planner = planned([adapter("t/low", current=here)], [engines[0]])
    planner.set_adapter(adapter("t/high", priority=1, current=here))
    planner.settle()
    assert planner.entries["t/low"].chosen == {}
    planner.set_engine(engines[1])
    planner.settle()
    assert list(planner.entries["t/low"].chosen) == ["p-1"]
    assert list(planner.entries["t/high"].chosen) == ["p-0"]


@pytest.mark.parametrize(
    "facts",
    [
        {"residency": Residency.GPU},
        {"residency": Residency.HOST},
        {"priority": 5},
    ],
    ids=["pinned", "ready in host memory", "as important"],
)
def test_nobody_takes_the_place_of_an_adapter_that_is(facts: dict[str, Any]) -> None:
    planner = planned([adapter("t/a", **facts)], [engine("p-0", max_adapters=1)[0]])
    planner.set_adapter(adapter("t/urgent", priority=5))
    planner.settle()
    assert list(planner.entries["t/a"].chosen) == ["p-0"]
    assert planner.entries["t/urgent"].chosen == {}


def test_an_adapter_for_every_engine_takes_places_of_less_important_ones_on_each() -> None:
    engines = [engine(name, max_adapters=1)[0] for name in ("p-0", "p-1")]
    planner = planned([adapter("t/low", replicas=2)], engines)
    planner.set_adapter(adapter("t/everywhere", policy=Policy.ALL, priority=1))
    planner.settle()
    assert sorted(planner.entries["t/everywhere"].chosen) == ["p-0", "p-1"]
    assert planner.entries["t/low"].chosen == {}


def test_an_adapter_for_every_engine_comes_back_to_the_place_that_it_gave_away() -> None:
    engines = [engine(name, max_adapters=1)[0] for name in ("p-0", "p-1")]
    planner = planned([adapter("t/everywhere", policy=Policy.ALL)], engines)
    planner.set_adapter(adapter("t/urgent", priority=1))
    planner.settle()
    assert sorted(planner.entries["t/everywhere"].chosen) == ["p-1"]
    planner.drop_adapter("t/urgent")
    planner.settle()
    assert sorted(planner.entries["t/everywhere"].chosen) == ["p-0", "p-1"]


def test_filters_are_asked_for_each_kind_of_engine_and_rooms_are_looked_up() -> None:
    """A fleet of one kind has one entry in the index, however many engines it has."""
    engines = [engine(f"p-{number}", zone=f"z-{number % 3}")[0] for number in range(60)]
    planner = planned([adapter(f"t/{number}", replicas=3) for number in range(200)], engines)
    (kind,) = planner.board.kinds.values()
    assert kind.size == 60
    assert {zone: len(shelf.positions) for zone, shelf in kind.shelves.items()} == {
        "z-0": 20,
        "z-1": 20,
        "z-2": 20,
    }
    loads = [carrier.load.adapters for carrier in planner.board.carriers.values()]
    assert (min(loads), max(loads)) == (10, 10)


def test_a_pass_of_one_adapter_looks_at_its_own_engines_only() -> None:
    engines = [engine(f"p-{number}")[0] for number in range(60)]
    demands = [adapter(f"t/{number}", replicas=3) for number in range(200)]
    planner = planned(demands, engines)
    asked: list[str] = []
    for name, carrier in planner.board.carriers.items():
        planner.board.carriers[name] = _Counting(carrier, asked)  # type: ignore[assignment]
    planner.set_adapter(demands[7])
    assert planner.settle() == set()
    assert asked == []
    planner.set_adapter(replace(demands[7], size_bytes=4 * MIB))
    assert planner.settle() == set()
    assert sorted(asked) == sorted(planner.entries["t/7"].chosen)


class _Counting:
    """A carrier that notes who was asked for room."""

    def __init__(self, carrier: Any, asked: list[str]) -> None:
        object.__setattr__(self, "carrier", carrier)
        object.__setattr__(self, "asked", asked)

    def lacks(self, demand: AdapterDemand, **how: Any) -> Any:
        self.asked.append(self.carrier.engine.pod_name)
        return self.carrier.lacks(demand, **how)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.carrier, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.carrier, name, value)


def test_an_engine_that_is_drained_loses_what_it_has_to_others_but_not_to_nobody() -> None:
    leaving = engine("p-0", leaving=True, loaded=frozenset({"t/a"}))
    demand = adapter(current=frozenset({"p-0"}))
    assert chosen(demand, leaving, engine("p-1")) == ["p-1"]
    assert chosen(demand, leaving) == []
