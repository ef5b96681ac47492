"""What holds for every fleet: no engine over capacity, no order dependence, least movement."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random  # noqa: TC003  # hypothesis reads annotations

import pytest
from hypothesis import HealthCheck, Phase, assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from lorafleet_operator.api.v1alpha1 import EngineHealth
from lorafleet_operator.placement import (
    AdapterDemand,
    EngineSnapshot,
    Policy,
    Verdict,
    choose,
    plan,
    planned,
)
from placement_fleets import (
    CHOSEN_BY_COUNT,
    PODS,
    adapter_lists,
    carried_out,
    demands_named,
    engine_lists,
    engines_named,
    in_one_piece,
    over_capacity,
)

# A busy machine is no failure; the fleets are small as they come, and shrinking them takes minutes.
unhurried = hypothesis_settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)


@unhurried
@given(adapter_lists(), engine_lists())
def test_no_engine_is_over_capacity(
    adapters: list[AdapterDemand], engines: list[EngineSnapshot]
) -> None:
    assert over_capacity(engines, adapters, plan(adapters, engines).assignments) == []


@unhurried
@given(adapter_lists(), engine_lists())
def test_an_adapter_is_blocked_exactly_when_it_has_fewer_engines_than_it_wants(
    adapters: list[AdapterDemand], engines: list[EngineSnapshot]
) -> None:
    result = plan(adapters, engines)
    assert set(result.assignments) == set(result.wanted) == {a.key for a in adapters}
    for a in adapters:
        chosen, wanted = len(result.assignments[a.key]), result.wanted[a.key]
        assert chosen <= wanted
        asleep = a.policy is Policy.ON_DEMAND and not wanted
        assert (a.key in result.blocked) == (not asleep and (chosen < wanted or chosen == 0))
        if a.key in result.blocked:
            message = result.blocked[a.key][1]
            assert message
            assert "\n" not in message


@unhurried
@given(adapter_lists(), engine_lists())
def test_replicas_are_honoured_wherever_an_engine_would_take_one_more(
    adapters: list[AdapterDemand], engines: list[EngineSnapshot]
) -> None:
    result = plan(adapters, engines)
    for a in adapters:
        if a.policy in CHOSEN_BY_COUNT and len(result.assignments[a.key]) < a.replicas:
            lines = result.why[a.key].engines
            assert {line.verdict for line in lines} <= {Verdict.CHOSEN, Verdict.REFUSED}


@unhurried
@given(adapter_lists(), engine_lists())
def test_every_engine_is_explained(
    adapters: list[AdapterDemand], engines: list[EngineSnapshot]
) -> None:
    result = plan(adapters, engines)
    for a in adapters:
        lines = result.why[a.key].engines
        assert [line.engine for line in lines] == sorted(e.pod_name for e in engines)
        for line in lines:
            chosen = line.engine in result.assignments[a.key]
            assert (line.verdict is Verdict.CHOSEN) == chosen
            assert (line.reason is None) == (line.verdict is not Verdict.REFUSED)
            assert line.text
            assert "\n" not in line.text


@unhurried
@given(adapter_lists(), engine_lists(), st.randoms(use_true_random=False))
def test_the_order_of_the_arguments_does_not_matter(
    adapters: list[AdapterDemand], engines: list[EngineSnapshot], random: Random
) -> None:
    first = plan(adapters, engines)
    shuffled_adapters, shuffled_engines = list(adapters), list(engines)
    random.shuffle(shuffled_adapters)
    random.shuffle(shuffled_engines)
    assert plan(shuffled_adapters, shuffled_engines) == first


@unhurried
@given(adapter_lists(), engine_lists().map(in_one_piece))
def test_a_plan_that_was_carried_out_is_kept(
    adapters: list[AdapterDemand], engines: list[EngineSnapshot]
) -> None:
    first = planned(adapters, engines).entries
    again = planned(*carried_out(adapters, engines, first)).entries
    for key, entry in first.items():
        assert entry.chosen.keys() <= again[key].chosen.keys()


@unhurried
@given(adapter_lists(), engine_lists().map(in_one_piece), st.data())
def test_removing_one_adapter_moves_no_other(
    adapters: list[AdapterDemand], engines: list[EngineSnapshot], data: st.DataObject
) -> None:
    assume(adapters)
    first = plan(adapters, engines)
    adapters, engines = carried_out(adapters, engines, planned(adapters, engines).entries)
    gone = data.draw(st.sampled_from(adapters))
    rest = plan([a for a in adapters if a is not gone], engines)
    for key, pods in rest.assignments.items():
        assert set(first.assignments[key]) <= set(pods)


@unhurried
@given(adapter_lists(), engine_lists().map(in_one_piece), engines_named(PODS[5]))
def test_adding_an_engine_moves_at_most_the_unplaced(
    adapters: list[AdapterDemand], engines: list[EngineSnapshot], new: EngineSnapshot
) -> None:
    first = plan(adapters, engines)
    adapters, engines = carried_out(adapters, engines, planned(adapters, engines).entries)
    second = plan(adapters, [*engines, replace(new, loaded=frozenset())])
    for a in adapters:
        before, after = set(first.assignments[a.key]), set(second.assignments[a.key])
        assert before <= after
        if a.policy in CHOSEN_BY_COUNT and a.key not in first.blocked:
            assert after == before


@unhurried
@given(adapter_lists(), engine_lists(least=2).map(in_one_piece), st.data())
def test_an_engine_that_dies_moves_only_what_it_carried_and_each_of_it_once(
    adapters: list[AdapterDemand], engines: list[EngineSnapshot], data: st.DataObject
) -> None:
    level = [replace(a, priority=0) for a in adapters]
    first, entries = plan(level, engines), planned(level, engines).entries
    level, engines = carried_out(level, engines, entries)
    dead = data.draw(st.sampled_from(engines))
    ill = replace(dead, health=EngineHealth.UNREACHABLE)
    second = plan(level, [ill if e is dead else e for e in engines])
    for a in level:
        before, after = set(first.assignments[a.key]), set(second.assignments[a.key])
        if not a.on_demand:  # what requests brought gives way to replicas
            assert before - entries[a.key].guests - after <= {dead.pod_name}
        if a.key not in first.blocked and a.policy in CHOSEN_BY_COUNT:
            assert len(after - before) <= len(before - after)


@unhurried
@given(adapter_lists(), engine_lists(), st.data())
def test_what_keeps_its_place_is_never_displaced_and_others_only_by_higher_priority(
    adapters: list[AdapterDemand], engines: list[EngineSnapshot], data: st.DataObject
) -> None:
    """But for what is there because a request asked for it: that gives way to all that is not."""
    assume(adapters)
    planner = planned(adapters, engines)
    before = {key: (set(e.chosen), e.guests) for key, e in planner.entries.items()}
    which = data.draw(st.sampled_from(adapters))
    priority, size = data.draw(st.integers(0, 9)), data.draw(st.integers(2, 12))
    changed = replace(which, priority=priority, size_bytes=size)
    planner.set_adapter(changed)
    planner.settle()
    for a in adapters:
        stays, guests = before[a.key]
        if not a.reserved:
            lasts = not a.on_demand and a.weight >= changed.weight
            stays = stays - guests if lasts else set()
        assert a is which or stays <= planner.entries[a.key].chosen.keys()


@unhurried
@given(st.integers(1, 30), st.integers(1, 6), st.integers(1, 12), st.booleans())
def test_many_adapters_of_one_tenant_do_not_starve_the_few_of_another(
    many: int, few: int, places: int, first_by_name: bool
) -> None:
    noisy, quiet = ("a", "b") if first_by_name else ("b", "a")
    counts = {noisy: many, quiet: few}
    adapters = [
        AdapterDemand(key=f"{tenant}/{number:02}", size_bytes=1, policy=Policy.SPREAD)
        for tenant, count in counts.items()
        for number in range(count)
    ]
    engine = EngineSnapshot("p-0", arena_limit_bytes=places, arena_largest_free_bytes=places)
    placed = Counter(
        key.partition("/")[0] for key, pods in plan(adapters, [engine]).assignments.items() if pods
    )
    for tenant, count in counts.items():
        assert placed[tenant] >= min(count, places // 2)
    assert placed.total() == min(many + few, places)


@pytest.mark.parametrize("few", [0, 16], ids=["content on many engines", "content on few"])
@unhurried
@given(adapters=adapter_lists(), engines=engine_lists(least=3), data=st.data())
def test_the_engine_found_on_the_shelves_is_the_best_of_all(
    few: int, adapters: list[AdapterDemand], engines: list[EngineSnapshot], data: st.DataObject
) -> None:
    board = planned(adapters, engines).board
    policy = data.draw(st.sampled_from(CHOSEN_BY_COUNT))
    adapter = replace(data.draw(demands_named("x/new")), policy=policy)
    chosen = data.draw(st.frozensets(st.sampled_from(sorted(board.carriers)), max_size=2))
    kinds = choose.open_kinds(board, adapter)
    beside = choose.taken(board, adapter, chosen)
    possible = [
        (choose.score(adapter, carrier, *beside), name)
        for name, carrier in board.carriers.items()
        if name not in chosen and carrier.kind in kinds and carrier.lacks(adapter) is None
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choose, "_FEW", few)
        found = choose.best(board, adapter, kinds, chosen)
    assert (found and found.engine.pod_name) == (min(possible)[1] if possible else None)
