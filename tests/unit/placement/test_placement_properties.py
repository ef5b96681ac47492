"""What holds for every fleet: no engine over capacity, no order dependence, least movement."""

from __future__ import annotations

from dataclasses import replace
from random import Random  # noqa: TC003  # hypothesis reads annotations

from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from lorafleet_operator.api.v1alpha1 import EngineHealth, PlacementPolicy
from lorafleet_operator.placement import (
    AdapterDemand,
    EngineSnapshot,
    PlacementPlan,
    PlacementSettings,
    plan,
)

KEYS = [f"t/{letter}" for letter in "abcdefgh"]
PODS = [f"p-{number}" for number in range(6)]

# A busy machine is no failure.
unhurried = hypothesis_settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
limits = st.builds(PlacementSettings, st.none() | st.integers(1, 4))


@st.composite
def engine_lists(draw: st.DrawFn) -> list[EngineSnapshot]:
    names = draw(st.lists(st.sampled_from(PODS[:5]), unique=True, max_size=5))
    return [draw(engines_named(name)) for name in names]


def engines_named(name: str) -> st.SearchStrategy[EngineSnapshot]:
    # Mostly engines that could take something, or nothing would ever compete for room.
    limit = st.integers(8, 20)
    return st.builds(
        EngineSnapshot,
        pod_name=st.just(name),
        health=st.sampled_from([EngineHealth.READY] * 6 + list(EngineHealth)),
        base_models=st.sampled_from([(), ("x",), ("x", "y")]),
        max_lora_rank=st.sampled_from([0, 8, 16]),
        max_loras=st.integers(1, 4),
        loaded=st.dictionaries(st.sampled_from(KEYS), st.just(frozenset({"d"})), max_size=4),
        arena_limit_bytes=limit,
        arena_used_bytes=limit,
        arena_in_use_bytes=limit,
        arena_largest_free_bytes=limit,
        budget_bytes=st.none() | limit,
        cordoned=st.sampled_from([False, False, False, True]),
    )


@st.composite
def adapter_lists(draw: st.DrawFn) -> list[AdapterDemand]:
    keys = draw(st.lists(st.sampled_from(KEYS), unique=True, max_size=8))
    return [
        draw(
            st.builds(
                AdapterDemand,
                key=st.just(key),
                base_model=st.sampled_from(["x", "x", "x", "y"]),
                size_bytes=st.none() | st.integers(2, 12),
                rank=st.none() | st.sampled_from([4, 8, 8, 16]),
                policy=st.sampled_from(PlacementPolicy),
                replicas=st.integers(1, 4),
                pinned=st.booleans(),
                current=st.frozensets(st.sampled_from(PODS[:5]), max_size=3),
            )
        )
        for key in keys
    ]


def settled(
    adapters: list[AdapterDemand], engines: list[EngineSnapshot], result: PlacementPlan
) -> tuple[list[AdapterDemand], list[EngineSnapshot]]:
    """Return the fleet after `result` was carried out."""
    moved = [replace(a, current=frozenset(result.assignments[a.key])) for a in adapters]
    loaded = [
        replace(
            e,
            loaded={
                key: frozenset({"d"})
                for key, pods in result.assignments.items()
                if e.pod_name in pods
            },
        )
        for e in engines
    ]
    return moved, loaded


@unhurried
@given(adapter_lists(), engine_lists(), limits)
def test_no_engine_is_over_capacity(
    adapters: list[AdapterDemand], engines: list[EngineSnapshot], settings: PlacementSettings
) -> None:
    result = plan(adapters, engines, settings)
    for engine in engines:
        here = [a for a in adapters if engine.pod_name in result.assignments[a.key]]
        if not here:
            continue
        assert engine.healthy
        assert sum(a.size_bytes or 0 for a in here) <= engine.capacity_bytes
        assert sum(a.pinned for a in here) < engine.max_loras
        if settings.max_adapters_per_engine is not None:
            assert len(here) <= settings.max_adapters_per_engine
        for a in here:
            assert not engine.base_models or a.base_model in engine.base_models
            assert not engine.max_lora_rank or (a.rank or 0) <= engine.max_lora_rank
            assert not engine.cordoned or a.on(engine)


@unhurried
@given(adapter_lists(), engine_lists(), limits)
def test_an_adapter_is_blocked_exactly_when_it_has_fewer_engines_than_it_wants(
    adapters: list[AdapterDemand], engines: list[EngineSnapshot], settings: PlacementSettings
) -> None:
    result = plan(adapters, engines, settings)
    assert set(result.assignments) == set(result.wanted) == {a.key for a in adapters}
    for a in adapters:
        chosen, wanted = len(result.assignments[a.key]), result.wanted[a.key]
        assert chosen <= wanted
        assert (a.key in result.blocked) == (chosen < wanted or chosen == 0)
        if a.key in result.blocked:
            message = result.blocked[a.key][1]
            assert message
            assert "\n" not in message


@unhurried
@given(adapter_lists(), engine_lists(), limits)
def test_every_engine_is_explained(
    adapters: list[AdapterDemand], engines: list[EngineSnapshot], settings: PlacementSettings
) -> None:
    result = plan(adapters, engines, settings)
    for a in adapters:
        assert set(result.why[a.key]) == {e.pod_name for e in engines}
        for pod, line in result.why[a.key].items():
            assert line.startswith("chosen: ") == (pod in result.assignments[a.key])


@unhurried
@given(adapter_lists(), engine_lists(), limits, st.randoms(use_true_random=False))
def test_the_order_of_the_arguments_does_not_matter(
    adapters: list[AdapterDemand],
    engines: list[EngineSnapshot],
    settings: PlacementSettings,
    random: Random,
) -> None:
    first = plan(adapters, engines, settings)
    shuffled_adapters, shuffled_engines = list(adapters), list(engines)
    random.shuffle(shuffled_adapters)
    random.shuffle(shuffled_engines)
    assert plan(shuffled_adapters, shuffled_engines, settings) == first


@unhurried
@given(adapter_lists(), engine_lists(), limits)
def test_a_plan_that_was_carried_out_is_kept(
    adapters: list[AdapterDemand], engines: list[EngineSnapshot], settings: PlacementSettings
) -> None:
    first = plan(adapters, engines, settings)
    again = plan(*settled(adapters, engines, first), settings)
    for key, pods in first.assignments.items():
        assert set(pods) <= set(again.assignments[key])


@unhurried
@given(adapter_lists(), engine_lists(), limits, st.data())
def test_removing_one_adapter_moves_no_other(
    adapters: list[AdapterDemand],
    engines: list[EngineSnapshot],
    settings: PlacementSettings,
    data: st.DataObject,
) -> None:
    if not adapters:
        return
    first = plan(adapters, engines, settings)
    adapters, engines = settled(adapters, engines, first)
    gone = data.draw(st.sampled_from(adapters))
    rest = plan([a for a in adapters if a is not gone], engines, settings)
    for key, pods in rest.assignments.items():
        assert set(first.assignments[key]) <= set(pods)


@unhurried
@given(adapter_lists(), engine_lists(), limits, engines_named(PODS[5]))
def test_adding_an_engine_moves_at_most_the_unplaced(
    adapters: list[AdapterDemand],
    engines: list[EngineSnapshot],
    settings: PlacementSettings,
    new: EngineSnapshot,
) -> None:
    first = plan(adapters, engines, settings)
    adapters, engines = settled(adapters, engines, first)
    new = replace(new, loaded={})
    second = plan(adapters, [*engines, new], settings)
    for a in adapters:
        before, after = set(first.assignments[a.key]), set(second.assignments[a.key])
        assert before <= after
        if a.policy is PlacementPolicy.SPREAD and a.key not in first.blocked:
            assert after == before
