"""What holds of tenants in every fleet: quotas, guaranteed shares, and whoever comes to the plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, Phase, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from lorafleet_operator.placement import (
    AdapterDemand,
    EngineSnapshot,
    Policy,
    Residency,
    Tenancy,
    TenantRule,
    plan,
    planned,
)
from lorafleet_operator.placement.tenancy import Kept, Shares
from placement_fleets import adapter_lists, carried_out, engine_lists, over_capacity, tenancy

unhurried = hypothesis_settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)

RULES = st.builds(
    TenantRule,
    name=st.sampled_from(["t", "u", "*"]),
    adapters=st.none() | st.integers(0, 4),
    staged_bytes=st.none() | st.integers(1, 16),
    pinned_bytes=st.none() | st.integers(1, 12),
    slots=st.none() | st.integers(0, 2),
    guaranteed_slots=st.integers(0, 3),
    guaranteed_bytes=st.sampled_from([0, 0, 4, 8]),
    guaranteed_percent=st.sampled_from([0, 0, 25, 50]),
)


@st.composite
def tenancies(draw: st.DrawFn) -> Tenancy:
    rules = draw(st.lists(RULES, max_size=3, unique_by=lambda rule: rule.name))
    nothing = {"guaranteed_slots": 0, "guaranteed_bytes": 0, "guaranteed_percent": 0}
    return tenancy(*(replace(r, **nothing) if r.name == "*" else r for r in rules))


def over_limits(
    rules: Tenancy, adapters: list[AdapterDemand], engines: list[EngineSnapshot], found: Any
) -> list[str]:
    """Return which quotas and guarantees do not hold; reckoned anew, not by the plan."""
    wrong = []
    by_name = {rule.name: rule for rule in rules.rules}
    for tenant in {a.namespace for a in adapters}:
        rule = by_name.get(tenant) or by_name.get("*")
        if rule is None:
            continue
        own = [a for a in adapters if a.namespace == tenant]
        if rule.adapters is not None and sum(bool(found[a.key]) for a in own) > rule.adapters:
            wrong.append(f"{tenant}: adapters")
        for e in engines:
            here = [a for a in own if e.pod_name in found[a.key]]
            pinned = [a for a in here if a.pinned]
            size, pinned_size = (sum(a.size_bytes or 0 for a in each) for each in (here, pinned))
            limits = {"staged": (size, rule.staged_bytes), "slots": (len(pinned), rule.slots)}
            limits["pinned"] = (pinned_size, rule.pinned_bytes)
            for name, (amount, limit) in limits.items():
                if limit is not None and here and amount > limit:
                    wrong.append(f"{tenant} on {e.pod_name}: {name}")
    for e in engines:
        left = e.capacity_bytes
        for rule in rules.rules:  # each has its share, or it is free for it
            share = rule.guaranteed_bytes
            if rule.guaranteed_percent:
                share = e.capacity_bytes * rule.guaranteed_percent // 100
            share = min(share, left)
            left -= share
            others = [
                a for a in adapters if e.pod_name in found[a.key] and a.namespace != rule.name
            ]
            if sum(a.size_bytes or 0 for a in others) > e.capacity_bytes - share:
                wrong.append(f"{rule.name} on {e.pod_name}: its share is taken")
    return wrong


@unhurried
@given(adapter_lists(), engine_lists(), tenancies(), st.randoms(use_true_random=False))
def test_no_quota_is_exceeded_and_no_share_is_taken_in_whatever_order_facts_come(
    adapters: list[AdapterDemand], engines: list[EngineSnapshot], rules: Tenancy, random: Any
) -> None:
    first = plan(adapters, engines, tenancy=rules)
    assert over_capacity(engines, adapters, first.assignments) == []
    assert over_limits(rules, adapters, engines, first.assignments) == []
    random.shuffle(adapters)
    random.shuffle(engines)
    assert plan(adapters, engines, tenancy=rules) == first


@unhurried
@given(adapter_lists(), engine_lists(), tenancies(), tenancies())
def test_tenants_that_change_leave_a_plan_that_holds_and_that_a_new_operator_comes_to(
    adapters: list[AdapterDemand], engines: list[EngineSnapshot], before: Tenancy, after: Tenancy
) -> None:
    planner = planned(adapters, engines, before)
    planner.set_tenancy(after)
    planner.settle()
    found = {key: tuple(sorted(entry.chosen)) for key, entry in planner.entries.items()}
    assert over_limits(after, adapters, engines, found) == []
    again = plan(*carried_out(adapters, engines, planner.entries), tenancy=after)
    for key, pods in found.items():
        assert set(pods) <= set(again.assignments[key])


@unhurried
@given(
    engine_lists(least=1),
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.integers(0, 14),
    st.booleans(),
)
def test_a_tenant_always_gets_what_is_guaranteed_whatever_others_ask(
    engines: list[EngineSnapshot], sizes: list[int], crowd: int, first: bool
) -> None:
    """Adapters for every engine that fit together into the share are on all that can take them."""
    engines = [
        replace(e, max_adapters=None, arena_used_bytes=9, arena_in_use_bytes=0) for e in engines
    ]
    rule = tenancy(TenantRule("quiet", guaranteed_bytes=sum(sizes)))
    own = [
        AdapterDemand(f"quiet/{n}", size_bytes=size, policy=Policy.ALL)
        for n, size in enumerate(sizes)
    ]
    others = [
        AdapterDemand(
            f"noisy/{n}",
            size_bytes=n % 5 + 1,
            policy=[Policy.ALL, Policy.SPREAD][n % 2],
            priority=n,
            residency=list(Residency)[n % 3],
        )
        for n in range(crowd)
    ]
    planner = planned(own if first else others, engines, rule)
    for demand in others if first else own:
        planner.set_adapter(demand)
        planner.settle()
    for e in engines:
        if e.healthy and not e.cordoned and e.capacity_bytes >= sum(sizes):
            for demand in own:
                assert e.pod_name in planner.entries[demand.key].chosen


@unhurried
@given(adapter_lists(), engine_lists(), tenancies(), st.data())
def test_one_adapter_that_goes_moves_no_other(
    adapters: list[AdapterDemand],
    engines: list[EngineSnapshot],
    rules: Tenancy,
    data: st.DataObject,
) -> None:
    """But for guests, who give way to anybody."""
    planner = planned(adapters, engines, rules)
    before = {key: entry.chosen.keys() - entry.guests for key, entry in planner.entries.items()}
    if adapters:
        gone = data.draw(st.sampled_from(adapters)).key
        planner.drop_adapter(gone)
        planner.settle()
        for key, entry in planner.entries.items():
            assert before[key] <= entry.chosen.keys()


SMALL = st.builds(
    AdapterDemand,
    key=st.uuids().map(lambda each: f"t/{each}"),
    assigned=st.just("t"),
    size_bytes=st.none() | st.integers(0, 4),
    residency=st.sampled_from(Residency),
)


@hypothesis_settings(deadline=None)
@given(st.integers(0, 6), st.integers(0, 3), st.lists(SMALL, max_size=5), SMALL)
@example(
    3, 0, [AdapterDemand("t/b", assigned="t", size_bytes=3)], AdapterDemand("t/e", assigned="t")
)
def test_who_claims_a_place_by_a_guarantee_is_guarded_by_it_then(
    kept_bytes: int, kept_slots: int, here: list[AdapterDemand], claims: AdapterDemand
) -> None:
    """Else it and a more important adapter took each other's place for ever, and planning never ended."""
    shares = Shares.of({"t": Kept(kept_bytes, kept_slots)})
    for each in here:
        shares.add(each)
    if shares.within(claims):
        shares.add(claims)
        assert shares.guards(claims)
