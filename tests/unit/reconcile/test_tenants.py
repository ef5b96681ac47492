"""Whose a namespace is, by the pool's spec; how often tenants load, and whose turn it is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from known_fleet import KnownFleet, Links
from lorafleet_operator.facts import Placed
from lorafleet_operator.fair import FairPlaces
from lorafleet_operator.hold_back import hold_back
from lorafleet_operator.load_rates import LoadRates
from lorafleet_operator.placement import TenantRule
from lorafleet_operator.report import report
from lorafleet_operator.tenants import tenancy_of
from lorafleet_operator.world import World
from operator_builders import (
    FINGERPRINT,
    OLD,
    adapter,
    engine,
    facts,
    loaded,
    pool,
    staged,
)

LABELS = {"a1": {"team": "a", "tier": "gold"}, "a2": {"team": "a"}, "b1": {"team": "b"}}
TENANTS: list[dict[str, Any]] = [
    {"name": "gold", "namespaceSelector": {"matchLabels": {"team": "a", "tier": "gold"}}},
    {"name": "a", "namespaceSelector": {"matchLabels": {"team": "a"}}},
    {
        "name": "named",
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "unread"}},
    },
    {"name": "listed", "namespaceSelector": {"names": ["b1", "a1", "c1"]}},
]


@pytest.mark.parametrize(
    ("namespace", "tenant"),
    [
        ("a1", "gold"),
        ("a2", "a"),
        ("b1", "listed"),
        ("c1", "listed"),
        ("unread", "named"),
        ("other", "/other"),
    ],
)
def test_the_first_tenant_that_selects_a_namespace_counts(namespace: str, tenant: str) -> None:
    tenancy = tenancy_of(pool(tenants=TENANTS).spec, LABELS.get)
    assert tenancy.tenant_of(namespace) == tenant
    assert (tenancy.rule(tenant) is None) == tenant.startswith("/")


def test_each_other_namespace_has_the_limits_of_the_entry_for_all() -> None:
    everybody = {"name": "*", "quota": {"adapters": 3}}
    tenancy = tenancy_of(pool(tenants=[everybody, *TENANTS]).spec, LABELS.get)
    assert tenancy.tenant_of("other") == "/other"
    found = tenancy.rule("/other")
    assert found is not None
    assert found.adapters == 3
    assert tenancy.tenant_of("b1") == "listed", "its place in the list does not matter"


def test_quantities_and_shares_are_read() -> None:
    (rule,) = tenancy_of(
        pool(
            tenants=[
                {
                    "name": "a",
                    "namespaceSelector": {"names": ["a"]},
                    "quota": {
                        "stagedBytes": "1Gi",
                        "pinnedBytes": 7,
                        "loadsPerMinute": 6,
                        "transferBytesPerSecond": "2Mi",
                    },
                    "guarantee": {"slots": 2, "arenaShare": "25%"},
                }
            ]
        ).spec,
        LABELS.get,
    ).rules
    assert rule == TenantRule(
        "a",
        staged_bytes=1 << 30,
        pinned_bytes=7,
        guaranteed_slots=2,
        guaranteed_percent=25,
        loads_per_minute=6,
        transfer_rate=2 << 20,
    )


def test_a_tenant_loads_as_often_as_it_may_and_others_do_not_count() -> None:
    now = 1000.0
    rates = LoadRates(lambda: now)
    waits = [rates.wait("p", "a", f"a/{n}", 6) for n in range(4)]
    assert waits == [0.0, 10.0, 20.0, 30.0]
    assert rates.wait("p", "b", "b/0", 6) == 0.0
    assert rates.wait("q", "a", "a/9", 6) == 0.0, "another pool has its own rate"
    now += 5
    assert rates.wait("p", "a", "a/1", 6) == 5.0, "whoever asks again keeps its turn"
    now += 5
    assert rates.wait("p", "a", "a/2", 6) == 10.0
    assert rates.wait("p", "a", "a/1", 6) == 0.0
    assert rates.wait("p", "a", "a/4", 6) == 30.0


def test_an_idle_tenant_saves_up_little() -> None:
    now = 1000.0
    rates = LoadRates(lambda: now)
    first = [rates.wait("p", "a", f"a/{n}", 60) for n in range(12)]
    assert first == [0.0] * 10 + [1.0, 2.0]
    now += 3600
    rates.forget("p", "a", "a/10")
    rates.forget("p", "a", "a/11")
    again = [rates.wait("p", "a", f"a/{n}", 60) for n in range(12)]
    assert again == first


def test_another_rate_counts_at_once_also_for_those_that_wait() -> None:
    rates = LoadRates(lambda: 1000.0)
    assert [rates.wait("p", "a", f"a/{n}", 1) for n in range(3)] == [0.0, 60.0, 120.0]
    assert [rates.wait("p", "a", f"a/{n}", 60) for n in range(1, 3)] == [0.0, 0.0]


async def test_places_go_round_between_the_sides_that_wait() -> None:
    places, order, everybody = FairPlaces(2), [], asyncio.Event()

    async def work(side: str, number: int) -> None:
        async with places.of(side):
            order.append(f"{side}{number}")
            await everybody.wait()

    noisy = [asyncio.create_task(work("n", number)) for number in range(8)]
    await asyncio.sleep(0)  # two of them have the places, the others wait
    quiet = [asyncio.create_task(work("q", number)) for number in range(2)]
    third = [asyncio.create_task(work("r", 0))]
    await asyncio.sleep(0)
    everybody.set()
    await asyncio.gather(*noisy, *quiet, *third)
    assert order[:2] == ["n0", "n1"]
    assert sorted(order[2:5]) == ["n2", "q0", "r0"]
    assert order.index("q1") < order.index("n5")


async def test_whoever_is_cancelled_keeps_no_place_from_others() -> None:
    places = FairPlaces(1)
    await places.take("a")
    waiting = [asyncio.create_task(places.take(side)) for side in "abab"]
    await asyncio.sleep(0)
    waiting[0].cancel()
    places.give_back("a")  # b's turn is set, and b is cancelled before it runs
    waiting[1].cancel()
    await asyncio.gather(*waiting[:2], return_exceptions=True)
    await waiting[2]
    assert not waiting[3].done()
    places.give_back("a")
    await waiting[3]
    places.give_back("b")
    await places.take("z")


async def test_one_owner_leaves_places_to_others_whatever_it_waits_for() -> None:
    places = FairPlaces(4, 3)
    turns = [asyncio.create_task(places.take("slow", kind)) for kind in ("", "again") * 4]
    await asyncio.sleep(0)
    assert sum(turn.done() for turn in turns) == 3
    async with asyncio.timeout(60):
        for _ in range(10):  # one after the other, while those of the slow one go on
            async with places.of("quick"):
                pass
    places.give_back("slow")
    await asyncio.sleep(0)
    assert sum(turn.done() for turn in turns) == 4, "who waited for one of its own has it"
    for turn in turns:
        turn.cancel()
    await asyncio.gather(*turns, return_exceptions=True)


async def test_a_place_is_awaited_by_those_who_would_have_it() -> None:
    places = FairPlaces(3, each=2)
    for owner in ("many", "many", "one"):
        await places.take(owner)
    more = asyncio.create_task(places.take("many"))
    await asyncio.sleep(0)
    assert (places.awaited("many"), places.awaited("one")) == (True, False)
    other = asyncio.create_task(places.take("other"))
    await asyncio.sleep(0)
    assert places.awaited("one")
    places.give_back("one")
    await other
    assert not places.awaited("other")
    places.give_back("many")
    await more
    assert not places.awaited("many")


def test_what_a_guarantee_keeps_in_a_slot_is_ordered_to_stay_there_on_those_engines_alone() -> None:
    placed = Placed(pods=("e-0", "e-1"), wanted=2, sheltered=frozenset({"e-1"}))
    found = facts(engine("e-0"), engine("e-1"), placed=placed).wanted()
    assert [each.residency for each in found.holdings] == ["", "gpu"]


def test_a_pass_that_is_held_back_says_so_and_orders_nothing() -> None:
    waiting = facts(engine("e-0"), held_back="tenant a has 6 loads a minute, all are taken for now")
    assert not waiting.may_act
    loaded = next(c for c in report(waiting).status.conditions if c.type == "Loaded")
    assert (loaded.status, loaded.reason) == ("False", "LoadRateLimited")
    assert loaded.message == waiting.held_back


async def test_a_paused_adapter_takes_no_load_from_its_tenant_and_one_that_waits_is_woken_once() -> (
    None
):
    quota = {"name": "*", "quota": {"loadsPerMinute": 60}}
    fleet: Any = KnownFleet(World({}, {}, {}, {}, ()), Links())
    fleet.load_rates = rates = LoadRates(lambda: 1000.0)
    fleet.pools.plan.set_tenancy(tenancy_of(pool(tenants=[quota]).spec, LABELS.get))
    found = facts(engine("e-0", staged()), pool=pool(tenants=[quota]))
    annotations = found.adapter.metadata.annotations
    annotations["lorafleet.dev/paused"] = "true"
    for _ in range(20):
        hold_back(found, fleet)
    assert found.held_back == ""
    assert not rates.behind("team-a/pool", "/team-a")
    annotations.clear()
    for _ in range(10):
        hold_back(found, fleet)
        assert found.held_back == ""
    for _ in range(5):
        hold_back(found, fleet)
    assert found.held_back == "tenant team-a has 60 loads a minute, all are taken for now"
    assert len(fleet.wakeups._timers) == 1
    fleet.wakeups._timers.popitem()[1].cancel()


async def test_a_way_back_waits_for_no_rate() -> None:
    quota = {"name": "*", "quota": {"loadsPerMinute": 1}}
    fleet: Any = KnownFleet(World({}, {}, {}, {}, ()), Links())
    fleet.load_rates = LoadRates(lambda: 1000.0)
    fleet.pools.plan.set_tenancy(tenancy_of(pool(tenants=[quota]).spec, LABELS.get))
    fleet.load_rates.wait("team-a/pool", "/team-a", "team-a/other", 1)
    old = {"digest": OLD, "fingerprint": "fp-0"}
    view = engine("e-0", loaded(), staged(), staged(OLD, "fp-0"))
    for bad in (True, False):
        note = {"fingerprint": FINGERPRINT if bad else "fp-9", "generation": 1}
        made = adapter(status={"stable": old, "rolledBack": note})
        entries = (view,) if bad else (engine("e-0", loaded(OLD), staged(), staged(OLD, "fp-0")),)
        found = facts(*entries, adapter=made, pool=pool(tenants=[quota]))
        hold_back(found, fleet)
        assert bool(found.held_back) is not bad
    fleet.wakeups._timers.popitem()[1].cancel()
