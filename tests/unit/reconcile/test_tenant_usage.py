"""What a pool's status says of its tenants: what they have beside what they may have."""

from __future__ import annotations

from lorafleet_operator.api.names import MAX_STATUS_TENANTS
from lorafleet_operator.load_rates import LoadRates
from lorafleet_operator.placement import (
    AdapterDemand,
    EngineSnapshot,
    Policy,
    Residency,
    TenantRule,
    planned,
)
from lorafleet_operator.tenant_usage import tenant_usage
from placement_fleets import tenancy

MIB = 1 << 20


def engine(name: str, mebibytes: int = 64, slots: int = 4) -> EngineSnapshot:
    size = mebibytes * MIB
    return EngineSnapshot(
        name,
        max_loras=slots,
        max_cpu_loras=16,
        arena_limit_bytes=size,
        arena_largest_free_bytes=size,
    )


def adapter(key: str, mebibytes: int = 2, **facts: object) -> AdapterDemand:
    base = AdapterDemand(key=key, size_bytes=mebibytes * MIB, rank=8, policy=Policy.ALL)
    return AdapterDemand(**{**vars(base), **facts})  # type: ignore[arg-type]


def test_each_tenant_has_its_counts_beside_its_limits() -> None:
    full = TenantRule("full", adapters=2, staged_bytes=8 * MIB, slots=3, pinned_bytes=4 * MIB)
    kept = TenantRule("kept", guaranteed_slots=5, guaranteed_percent=25)
    pins = {"residency": Residency.GPU}
    plan = planned(
        [
            adapter("full/1", **pins),
            adapter("full/2"),
            adapter("full/3"),
            adapter("kept/1"),
            adapter("free/1"),
        ],
        [engine("p-0", slots=8), engine("p-1", mebibytes=32, slots=3)],
        tenancy(full, kept),
    )
    found = [usage.to_api() for usage in tenant_usage(plan)]
    assert found == [
        {
            "name": "full",
            "adapters": 2,
            "adaptersQuota": 2,
            "stagedBytes": 4 * MIB,
            "stagedBytesQuota": 8 * MIB,
            "pinnedBytes": 2 * MIB,
            "pinnedBytesQuota": 4 * MIB,
            "slots": 1,
            "slotsQuota": 3,
            "guaranteedSlots": 0,
            "guaranteedBytes": 0,
            "throttled": False,
        },
        {
            "name": "kept",
            "adapters": 1,
            "stagedBytes": 2 * MIB,
            "pinnedBytes": 0,
            "slots": 0,
            "guaranteedSlots": 2,
            "guaranteedBytes": 8 * MIB,
            "throttled": False,
        },
    ], "who has no limits is not told of; what is kept is what the smallest engine can keep"


def test_the_list_is_bounded_and_begins_with_those_who_wait_or_are_nearest_to_a_limit() -> None:
    everybody = TenantRule("*", adapters=4, loads_per_minute=6)
    keys = [f"team-{n:02}/a" for n in range(60)] + ["team-07/b", "team-09/b", "team-09/c"]
    plan = planned(
        [adapter(key, 1, policy=Policy.SPREAD) for key in keys],
        [engine("p-0")],
        tenancy(everybody),
    )
    found = tenant_usage(plan, lambda tenant: tenant == "/team-42")
    assert len(found) == MAX_STATUS_TENANTS
    assert {usage.name for usage in found} == {"*"}
    assert [(usage.namespace, usage.adapters) for usage in found[:4]] == [
        ("team-42", 1),
        ("team-09", 3),
        ("team-07", 2),
        ("team-00", 1),
    ]


def test_a_plan_without_tenants_tells_of_none() -> None:
    assert tenant_usage(planned([adapter("a/1")], [engine("p-0")])) == []


def test_a_tenant_is_behind_while_one_of_its_loads_waits() -> None:
    now = 1000.0
    rates = LoadRates(lambda: now)
    assert not rates.behind("p", "a")
    rates.wait("p", "a", "a/0", 6)
    assert not rates.behind("p", "a")
    rates.wait("p", "a", "a/1", 6)
    assert rates.behind("p", "a")
    assert not rates.behind("p", "b")
    now += 10
    assert not rates.behind("p", "a")
