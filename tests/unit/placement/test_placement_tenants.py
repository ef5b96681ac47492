"""Tenants in the plan: quotas, and what a guarantee keeps free whatever others ask for."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from lorafleet_operator.api.conditions import Reason
from lorafleet_operator.api.v1alpha1 import EngineHealth
from lorafleet_operator.placement import (
    AdapterDemand,
    EngineSnapshot,
    Planner,
    Policy,
    Residency,
    Tenancy,
    TenantRule,
    displaced_from,
    over_quota_on,
    plan,
    planned,
)
from placement_fleets import tenancy

MIB = 1 << 20


def engine(name: str = "p-0", **facts: Any) -> EngineSnapshot:
    defaults: dict[str, Any] = {
        "max_loras": 4,
        "max_cpu_loras": 8,
        "arena_limit_bytes": 16 * MIB,
        "arena_largest_free_bytes": 16 * MIB,
    }
    return EngineSnapshot(name, **{**defaults, **facts})


def adapter(key: str, created: str = "", **facts: Any) -> AdapterDemand:
    defaults = {"policy": Policy.SPREAD, "size_bytes": 2 * MIB, "rank": 8}
    return AdapterDemand(key=key, created=created, **{**defaults, **facts})


def many(tenant: str, count: int, **facts: Any) -> list[AdapterDemand]:
    return [adapter(f"{tenant}/{n:02}", f"2026-01-{n + 1:02}", **facts) for n in range(count)]


def placed(planner: Planner) -> dict[str, list[str]]:
    return {key: sorted(entry.chosen) for key, entry in planner.entries.items() if entry.chosen}


@pytest.mark.parametrize(
    ("rule", "facts", "text"),
    [
        (TenantRule("a", adapters=2), {}, "tenant a has 2 of 2 adapters"),
        (
            TenantRule("a", staged_bytes=5 * MIB),
            {},
            "p-0: tenant a has 4.0 MiB of 5.0 MiB here, needs 2.0 MiB more",
        ),
        (
            TenantRule("a", slots=2),
            {"residency": Residency.GPU},
            "p-0: tenant a has 2 of 2 pinned adapters here",
        ),
        (
            TenantRule("a", pinned_bytes=4 * MIB),
            {"residency": Residency.GPU},
            "p-0: tenant a has 4.0 MiB of 4.0 MiB pinned here, needs 2.0 MiB more",
        ),
    ],
    ids=["adapters", "stagedBytes", "slots", "pinnedBytes"],
)
def test_what_is_over_a_quota_has_no_place_and_its_line_has_the_numbers(
    rule: TenantRule, facts: dict[str, Any], text: str
) -> None:
    found = plan(
        [*many("a", 3, **facts), adapter("b/x", **facts)], [engine()], tenancy=tenancy(rule)
    )
    assert found.assignments["a/00"] == found.assignments["a/01"] == ("p-0",)
    assert found.assignments["b/x"] == ("p-0",), "another tenant's quota is no concern of it"
    reason, line = found.blocked["a/02"]
    assert reason is Reason.QUOTA_EXCEEDED
    assert text in line
    (told,) = found.why["a/02"].engines
    assert told.reason is Reason.QUOTA_EXCEEDED


def test_a_quota_of_bytes_is_for_each_engine() -> None:
    engines = [engine("p-0"), engine("p-1")]
    rule = tenancy(TenantRule("a", staged_bytes=2 * MIB))
    found = plan(many("a", 3), engines, tenancy=rule)
    assert sorted(found.assignments.values()) == [(), ("p-0",), ("p-1",)]


def test_the_entry_for_everybody_limits_each_other_namespace_by_itself() -> None:
    rule = tenancy(TenantRule("a"), TenantRule("*", adapters=1))
    found = plan([*many("a", 3), *many("b", 2), *many("c", 2)], [engine()], tenancy=rule)
    assert {key for key, pods in found.assignments.items() if not pods} == {"b/01", "c/01"}
    assert found.blocked["c/01"][1] == "tenant c has 1 of 1 adapters"


def test_a_newcomer_takes_nobodys_place_by_quota_however_important_or_old() -> None:
    planner = planned(many("a", 2), [engine()], tenancy(TenantRule("a", adapters=2)))
    planner.set_adapter(adapter("a/new", "2025-01-01", priority=9))
    planner.settle()
    assert sorted(placed(planner)) == ["a/00", "a/01"]
    planner.set_tenancy(tenancy(TenantRule("a", staged_bytes=4 * MIB)))
    planner.set_adapter(adapter("a/new", "2025-01-01", priority=9, size_bytes=3 * MIB))
    planner.drop_adapter("a/01")
    planner.settle()
    assert sorted(placed(planner)) == ["a/00"]


@pytest.mark.parametrize(
    "smaller", [TenantRule("a", adapters=2), TenantRule("a", staged_bytes=5 * MIB)]
)
def test_when_a_quota_shrinks_the_newest_go_and_come_back_when_it_grows(
    smaller: TenantRule,
) -> None:
    # The names run against the age: z is the oldest.
    those = [adapter(f"a/{name}", f"2026-01-0{day}") for day, name in enumerate("zyxw", 1)]
    planner = planned(those, [engine()])
    loaded = engine(loaded=frozenset(d.key for d in those))
    planner.set_engine(loaded)
    planner.set_tenancy(tenancy(smaller))
    assert planner.settle() >= {"a/w", "a/x"}
    assert sorted(placed(planner)) == ["a/y", "a/z"]
    assert over_quota_on(planner, planner.entries["a/w"]) == {"p-0"}
    assert over_quota_on(planner, planner.entries["a/z"]) == frozenset()
    anew = planned(those, [loaded], tenancy(smaller))
    assert placed(anew) == placed(planner), "an operator that starts comes to the same plan"
    planner.set_tenancy(Tenancy())
    planner.settle()
    assert len(placed(planner)) == 4


def test_nothing_is_kept_of_namespaces_whose_adapters_are_gone() -> None:
    planner = planned([], [engine()], tenancy(TenantRule("*", adapters=5)))
    for number in range(5):
        planner.set_adapter(adapter(f"team-{number}/a"))
        planner.settle()
        planner.drop_adapter(f"team-{number}/a")
        planner.settle()
    shares = planner.board.carriers["p-0"].shares
    assert shares is not None
    assert shares.loads == {}


def test_room_that_is_guaranteed_stays_free_of_others() -> None:
    rule = tenancy(TenantRule("quiet", guaranteed_percent=25))
    planner = planned(many("noisy", 9, priority=5), [engine()], rule)
    assert len(placed(planner)) == 6
    assert planner.entries["noisy/08"].chosen == {}
    planner.set_adapter(adapter("quiet/x", size_bytes=4 * MIB))
    assert planner.settle() == {"quiet/x"}, "nobody had to move"
    assert placed(planner)["quiet/x"] == ["p-0"]


def test_a_line_says_what_is_kept_for_others() -> None:
    rule = tenancy(TenantRule("quiet", guaranteed_bytes=4 * MIB, guaranteed_slots=2))
    found = plan(many("noisy", 9), [engine()], tenancy=rule)
    assert found.blocked["noisy/08"] == (
        Reason.NO_CAPACITY,
        "0 of 1 engines: p-0: needs 2.0 MiB, 0.0 MiB of 16.0 MiB are free,"
        " 4.0 MiB are kept for other tenants",
    )
    pinned = plan(many("noisy", 2, residency=Residency.GPU), [engine()], tenancy=rule)
    assert pinned.blocked["noisy/01"] == (
        Reason.NO_CAPACITY,
        "0 of 1 engines: p-0: has 1 pinned adapters for 4 GPU slots, one stays free,"
        " 2 are kept for other tenants",
    )


def test_a_new_guarantee_is_given_at_once_and_whoever_goes_is_unloaded() -> None:
    crowd = many("noisy", 8)
    planner = planned(crowd, [engine(loaded=frozenset(d.key for d in crowd))])
    assert len(placed(planner)) == 8
    planner.set_tenancy(tenancy(TenantRule("quiet", guaranteed_bytes=5 * MIB)))
    planner.settle()
    assert sorted(placed(planner)) == [f"noisy/0{n}" for n in range(5)]
    assert displaced_from(planner, planner.entries["noisy/07"]) == {"p-0"}
    assert displaced_from(planner, planner.entries["noisy/00"]) == frozenset()


def test_who_gave_way_to_a_guarantee_is_told_so_and_of_no_priority() -> None:
    rule = tenancy(TenantRule("quiet", guaranteed_bytes=4 * MIB))
    held = engine(max_adapters=2, loaded=frozenset({"loud/0", "loud/1"}))
    loud = [adapter("loud/0", "2026-01-01", priority=9), adapter("loud/1", "2026-01-02")]
    quiet = adapter("quiet/0", "2026-01-03")
    found = plan([*loud, quiet], [held], tenancy=rule)
    assert found.assignments["quiet/0"] == ("p-0",)
    assert found.blocked["loud/1"] == (
        Reason.PREEMPTED,
        "0 of 1 engines: p-0: has 2 of 2 adapters; quiet/0 within another tenant's guarantee;"
        " loud/0 of higher priority",
    )


def test_what_is_guaranteed_makes_room_among_a_limited_count_of_adapters() -> None:
    rule = tenancy(TenantRule("quiet", guaranteed_bytes=4 * MIB))
    planner = planned(many("noisy", 4, priority=9), [engine(max_adapters=3)], rule)
    for n in range(3):
        planner.set_adapter(adapter(f"quiet/{n}"))
        planner.settle()
    assert sorted(placed(planner)) == ["noisy/02", "quiet/0", "quiet/1"], "the third is beyond it"
    why = planner.entries["quiet/0"].chosen["p-0"]
    assert why.endswith("(guarantee of quiet)")
    planner.set_adapter(adapter("noisy/99", priority=99))
    planner.settle()
    assert {"quiet/0", "quiet/1"} <= placed(planner).keys(), "no priority takes what is guaranteed"


def test_the_oldest_adapters_of_a_guarantee_keep_their_slots_on_each_engine() -> None:
    rule = tenancy(TenantRule("quiet", guaranteed_slots=2))
    planner = planned(many("quiet", 4), [engine()], rule)
    assert {k for k in planner.entries if planner.books.sheltered_on(k)} == {"quiet/00", "quiet/01"}
    planner.drop_adapter("quiet/00")
    assert planner.settle() == {"quiet/02"}, "whose slot that changes is woken"
    assert planner.books.sheltered_on("quiet/02") == {"p-0"}
    planner.set_adapter(adapter("quiet/03", "2026-01-04", residency=Residency.GPU))
    assert planner.settle() >= {"quiet/02"}
    assert {k for k in planner.entries if planner.books.sheltered_on(k)} == {"quiet/01", "quiet/03"}


def test_pinned_adapters_of_others_take_no_slot_that_is_guaranteed() -> None:
    rule = tenancy(TenantRule("quiet", guaranteed_slots=2), TenantRule("late", guaranteed_slots=9))
    pinned = many("noisy", 3, residency=Residency.GPU)
    found = plan(pinned, [engine(max_loras=5)], tenancy=rule)
    assert not any(found.assignments.values()), "of five slots four are guaranteed, one is shared"
    planner = planned(many("late", 4), [engine(max_loras=5)], rule)
    sheltered = {k for k in planner.entries if planner.books.sheltered_on(k)}
    assert sheltered == {"late/00", "late/01"}, "what comes first in the list is kept first"


def test_an_engine_without_the_plugin_keeps_no_slots() -> None:
    rule = tenancy(TenantRule("quiet", guaranteed_slots=2))
    planner = planned(many("quiet", 2), [engine(health=EngineHealth.STOCK)], rule)
    assert len(placed(planner)) == 2
    assert planner.books.sheltered_on("quiet/00") == frozenset()


class HostTier:
    """The host places of one engine: the least recently used goes, unless it keeps its place."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.order: list[str] = []
        self.evicted: Counter[str] = Counter()

    def load(self, key: str, kept: set[str]) -> None:
        if key in self.order:
            return
        while len(self.order) >= self.places:
            victim = next(each for each in self.order if each not in kept)
            self.order.remove(victim)
            self.evicted[victim.partition("/")[0]] += 1
        self.order.append(key)


@pytest.mark.parametrize("guaranteed", [True, False])
def test_a_tenant_that_loads_without_pause_costs_a_guarantee_no_eviction_and_no_place(
    guaranteed: bool,
) -> None:
    random = Random(7)
    rules = [TenantRule("noisy", adapters=40)]
    if guaranteed:
        rules.append(TenantRule("quiet", guaranteed_slots=2, guaranteed_percent=25))
    engines = [engine(f"p-{n}", max_adapters=12) for n in range(3)]
    quiet = many("quiet", 2, policy=Policy.ALL)
    planner = planned(quiet, engines, tenancy(*rules))
    tiers = {e.pod_name: HostTier(8) for e in engines}
    lost = 0
    for turn in range(400):
        key = f"noisy/{random.randrange(60)}"
        if random.random() < 0.3:
            planner.drop_adapter(key)
        else:
            facts = {
                "policy": random.choice([Policy.ALL, Policy.SPREAD]),
                "replicas": 3,
                "size_bytes": MIB,
            }
            residency = random.choice(list(Residency))
            priority = random.randrange(10)
            planner.set_adapter(
                adapter(key, f"{turn:04}", residency=residency, priority=priority, **facts)
            )
        planner.settle()
        entries = planner.entries
        lost += sum(len(entries[each.key].chosen) < 3 for each in quiet)
        for name, carrier in planner.board.carriers.items():
            kept = {k for k in carrier.adapters if name in planner.books.sheltered_on(k)}
            kept |= {k for k, each in carrier.adapters.items() if each.reserved}
            for each in sorted(carrier.adapters, key=lambda k: (k not in kept, k)):
                tiers[name].load(each, kept)
    evicted = sum((tier.evicted for tier in tiers.values()), Counter[str]())
    assert evicted["noisy"] > 100
    assert (lost == 0) is guaranteed
    assert (evicted["quiet"] == 0) is guaranteed


def test_no_guest_is_sheltered_for_engines_that_keep_it_as_another_could_not_tell_of_it() -> None:
    asked = adapter("quiet/a", requested=frozenset(["p-1"]))
    rules = tenancy(TenantRule("quiet", guaranteed_slots=2))
    planner = planned([asked], [engine("p-0"), engine("p-1")], rules)
    assert planner.entries["quiet/a"].guests == {"p-1"}
    assert planner.books.sheltered_on("quiet/a") == {"p-0"}
    planner.drop_engine("p-0")
    assert planner.settle() == {"quiet/a"}
    assert planner.books.sheltered_on("quiet/a") == {"p-1"}
