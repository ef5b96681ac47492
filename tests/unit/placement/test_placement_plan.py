"""Placement as tables: which engines are chosen, and what a person reads when they are not."""

from __future__ import annotations

from typing import Any

import pytest
from lorafleet_operator.api.conditions import Reason
from lorafleet_operator.api.v1alpha1 import EngineHealth, LoRAAdapter
from lorafleet_operator.placement import (
    AdapterDemand,
    EngineSnapshot,
    PlacementPlan,
    Policy,
    Residency,
    plan,
)

MIB = 1 << 20


def engine(name: str, **facts: Any) -> EngineSnapshot:
    """An engine with room for 64 MiB and 4 slots, unless `facts` say otherwise."""
    defaults: dict[str, Any] = {
        "base_models": ("tiny/base",),
        "max_lora_rank": 8,
        "max_loras": 4,
        "max_cpu_loras": 8,
        "arena_limit_bytes": 64 * MIB,
        "arena_largest_free_bytes": 64 * MIB,
    }
    return EngineSnapshot(pod_name=name, **{**defaults, **facts})


def spread(key: str, replicas: int = 1, **facts: Any) -> AdapterDemand:
    defaults = {"base_model": "tiny/base", "size_bytes": 2 * MIB, "rank": 8}
    return AdapterDemand(key=key, policy=Policy.SPREAD, replicas=replicas, **{**defaults, **facts})


def everywhere(key: str, **facts: Any) -> AdapterDemand:
    defaults = {"base_model": "tiny/base", "size_bytes": 2 * MIB, "rank": 8}
    return AdapterDemand(key=key, **{**defaults, **facts})


def has(*keys: str) -> frozenset[str]:
    return frozenset(keys)


def said(result: PlacementPlan, key: str) -> dict[str, str]:
    return {line.engine: str(line) for line in result.why[key].engines}


def test_policy_all_takes_every_engine() -> None:
    result = plan([everywhere("t/a")], [engine("p-1"), engine("p-0")])
    assert result.assignments == {"t/a": ("p-0", "p-1")}
    assert result.wanted == {"t/a": 2}
    assert result.blocked == {}


def test_spread_takes_the_engines_with_fewest_adapters_then_by_name() -> None:
    result = plan([spread(f"t/{i}") for i in range(4)], [engine("p-0"), engine("p-1")])
    assert result.assignments == {
        "t/0": ("p-0",),
        "t/1": ("p-1",),
        "t/2": ("p-0",),
        "t/3": ("p-1",),
    }


def test_an_adapter_stays_where_it_is_though_another_engine_is_emptier() -> None:
    engines = [engine("p-0"), engine("p-1", loaded=has("t/a", "t/b"))]
    result = plan([spread("t/a"), spread("t/b")], engines)
    assert result.assignments == {"t/a": ("p-1",), "t/b": ("p-1",)}


def test_an_engine_that_is_receiving_the_adapter_counts_as_having_it() -> None:
    result = plan(
        [spread("t/a", current=frozenset({"p-1"}))],
        [engine("p-0"), engine("p-1", arena_largest_free_bytes=0)],
    )
    assert result.assignments == {"t/a": ("p-1",)}


def test_scale_down_leaves_the_cordoned_then_the_unloaded_then_the_fullest_engine() -> None:
    engines = [
        engine("p-0", loaded=has("t/a"), cordoned=True),
        engine("p-1"),
        engine("p-2", loaded=has("t/a", "t/x")),
        engine("p-3", loaded=has("t/a")),
    ]
    holders = frozenset({"p-0", "p-1", "p-2", "p-3"})
    kept = [
        plan([spread("t/a", n, current=holders)], engines).assignments["t/a"] for n in (3, 2, 1)
    ]
    assert kept == [("p-1", "p-2", "p-3"), ("p-2", "p-3"), ("p-3",)]


def test_more_replicas_than_engines_places_what_it_can_and_says_the_counts() -> None:
    result = plan([spread("t/a", 3)], [engine("p-0"), engine("p-1")])
    assert result.assignments == {"t/a": ("p-0", "p-1")}
    reason, message = result.blocked["t/a"]
    assert reason is Reason.NO_CAPACITY
    assert message == "2 of 3 engines: the pool has 2"


def test_an_empty_pool_blocks() -> None:
    for demand in (spread("t/a"), everywhere("t/a")):
        result = plan([demand], [])
        assert result.blocked == {"t/a": (Reason.NO_MATCHING_ENGINES, "the pool has no engines")}
        assert result.assignments == {"t/a": ()}


@pytest.mark.parametrize(
    ("demand", "facts", "reason", "text"),
    [
        (
            {},
            {"health": EngineHealth.STARTING},
            Reason.NO_MATCHING_ENGINES,
            "vLLM is starting",
        ),
        (
            {},
            {"health": EngineHealth.REFUSED, "health_message": "started without --enable-lora"},
            Reason.NO_MATCHING_ENGINES,
            "takes no adapters: started without --enable-lora",
        ),
        (
            {},
            {"health": EngineHealth.UNREACHABLE},
            Reason.NO_MATCHING_ENGINES,
            "sidecar does not answer",
        ),
        (
            {"base_model": "other/base"},
            {},
            Reason.BASE_MODEL_MISMATCH,
            "serves tiny/base, the adapter wants other/base",
        ),
        ({"rank": 16}, {}, Reason.RANK_TOO_HIGH, "LoRA rank 16 is greater than max_lora_rank 8"),
        ({"size_bytes": 65 * MIB}, {}, Reason.TOO_LARGE, "needs 65.0 MiB, may use 64.0 MiB"),
        (
            {"size_bytes": 9 * MIB},
            {"budget_bytes": 8 * MIB},
            Reason.TOO_LARGE,
            "needs 9.0 MiB, may use 8.0 MiB",
        ),
        (
            {"residency": Residency.GPU},
            {"health": EngineHealth.STOCK},
            Reason.PLUGIN_INACTIVE,
            "pinned needs the plugin, which is not live",
        ),
        ({}, {"cordoned": True}, Reason.NO_MATCHING_ENGINES, "is cordoned"),
        (
            {"residency": Residency.GPU},
            {"max_loras": 1},
            Reason.NO_CAPACITY,
            "has 0 pinned adapters for 1 GPU slots, one stays free",
        ),
        (
            {"size_bytes": 4 * MIB},
            {
                "arena_largest_free_bytes": 2 * MIB,
                "arena_used_bytes": 8 * MIB,
                "arena_in_use_bytes": 8 * MIB,
            },
            Reason.NO_CAPACITY,
            "needs 4.0 MiB in one piece, the largest free one has 2.0 MiB",
        ),
    ],
)
def test_each_refusal_has_its_reason_and_says_found_and_wanted(
    demand: dict[str, Any], facts: dict[str, Any], reason: Reason, text: str
) -> None:
    result = plan([spread("t/a", **demand)], [engine("p-0", **facts)])
    assert result.assignments == {"t/a": ()}
    assert result.blocked["t/a"] == (reason, f"0 of 1 engines: p-0: {text}")
    assert said(result, "t/a") == {"p-0": f"refused: {text}"}


def test_what_is_not_known_yet_refuses_nothing() -> None:
    unknown = spread("t/a", size_bytes=None, rank=None)
    vague = engine("p-0", base_models=(), max_lora_rank=0)
    assert plan([unknown], [vague]).assignments == {"t/a": ("p-0",)}


def test_something_evictable_makes_the_largest_piece_no_obstacle() -> None:
    target = engine("p-0", arena_used_bytes=8 * MIB, arena_largest_free_bytes=0)
    assert plan([spread("t/a")], [target]).assignments == {"t/a": ("p-0",)}


def test_arena_bytes_bound_the_adapters_of_an_engine() -> None:
    demands = [spread(f"t/{i}", size_bytes=24 * MIB) for i in range(3)]
    result = plan(demands, [engine("p-0")])
    assert result.assignments == {"t/0": ("p-0",), "t/1": ("p-0",), "t/2": ()}
    assert result.blocked["t/2"] == (
        Reason.NO_CAPACITY,
        "0 of 1 engines: p-0: needs 24.0 MiB, 16.0 MiB of 64.0 MiB are free",
    )


def test_unpinned_adapters_may_be_more_than_the_slots() -> None:
    result = plan([spread(f"t/{i}") for i in range(9)], [engine("p-0", max_loras=2)])
    assert result.blocked == {}


def test_pinned_adapters_leave_one_slot_free_and_go_first() -> None:
    pinned = [spread(f"t/{i}", residency=Residency.GPU) for i in range(3)]
    result = plan([spread("a/unpinned"), *pinned], [engine("p-0", max_loras=3)])
    assert result.assignments["t/2"] == ()
    assert result.blocked["t/2"][1].endswith(
        "has 2 pinned adapters for 3 GPU slots, one stays free"
    )
    assert result.assignments["a/unpinned"] == ("p-0",)


def test_a_setting_bounds_the_adapters_of_an_engine() -> None:
    result = plan([spread("t/a"), spread("t/b")], [engine("p-0", max_adapters=1)])
    assert result.blocked["t/b"][1] == "0 of 1 engines: p-0: has 1 of 1 adapters"


def test_spread_moves_away_from_an_engine_that_is_down() -> None:
    engines = [engine("p-0", health=EngineHealth.STARTING), engine("p-1")]
    result = plan([spread("t/a", current=frozenset({"p-0"}))], engines)
    assert result.assignments == {"t/a": ("p-1",)}
    assert result.blocked == {}


def test_all_does_not_wait_for_an_engine_that_starts_for_the_first_time() -> None:
    result = plan([everywhere("t/a")], [engine("p-0"), engine("p-1", health=EngineHealth.STARTING)])
    assert result.wanted == {"t/a": 1}
    assert result.blocked == {}


@pytest.mark.parametrize("health", [EngineHealth.STARTING, EngineHealth.UNREACHABLE])
def test_all_is_short_of_an_engine_that_had_the_adapter_and_is_down(health: EngineHealth) -> None:
    result = plan(
        [everywhere("t/a", current=frozenset({"p-0", "p-1"}))],
        [engine("p-0"), engine("p-1", health=health)],
    )
    assert result.assignments == {"t/a": ("p-0",)}
    assert result.wanted == {"t/a": 2}
    assert result.blocked["t/a"][0] is Reason.NO_MATCHING_ENGINES
    assert result.blocked["t/a"][1].startswith("1 of 2 engines: p-1: ")


def test_all_is_short_of_an_engine_that_refuses_adapters() -> None:
    result = plan([everywhere("t/a")], [engine("p-0"), engine("p-1", health=EngineHealth.REFUSED)])
    assert result.blocked == {
        "t/a": (Reason.NO_MATCHING_ENGINES, "1 of 2 engines: p-1: takes no adapters")
    }


def test_all_ignores_engines_whose_rank_is_too_small_while_others_fit() -> None:
    result = plan([everywhere("t/a")], [engine("p-0"), engine("p-1", max_lora_rank=4)])
    assert result.assignments == {"t/a": ("p-0",)}
    assert result.blocked == {}
    assert said(result, "t/a")["p-1"] == "refused: LoRA rank 8 is greater than max_lora_rank 4"


def test_different_refusals_sum_up_to_no_matching_engines() -> None:
    result = plan(
        [spread("t/a", rank=8)],
        [engine("p-0", max_lora_rank=4), engine("p-1", health=EngineHealth.STARTING)],
    )
    reason, message = result.blocked["t/a"]
    assert reason is Reason.NO_MATCHING_ENGINES
    assert "p-0: LoRA rank 8" in message
    assert "p-1: vLLM is starting" in message


def test_a_message_names_five_engines_and_counts_the_rest() -> None:
    engines = [engine(f"p-{i}", health=EngineHealth.STARTING) for i in range(9)]
    message = plan([spread("t/a")], engines).blocked["t/a"][1]
    assert message.endswith("p-4: vLLM is starting; and 4 more")


def test_why_explains_every_engine_and_only_what_was_asked() -> None:
    engines = [engine("p-0", loaded=has("t/a")), engine("p-1"), engine("p-2", cordoned=True)]
    result = plan([spread("t/a"), spread("t/b")], engines, explain={"t/a"})
    assert set(result.why) == {"t/a"}
    assert said(result, "t/a") == {
        "p-0": "chosen: has it already",
        "p-1": "not needed: 1 of 1 engines chosen",
        "p-2": "refused: is cordoned",
    }


def test_why_tells_what_an_engine_has_from_what_it_was_chosen_for() -> None:
    result = plan([spread("t/a", current=frozenset({"p-0"}))], [engine("p-0"), engine("p-1")])
    assert said(result, "t/a")["p-0"] == "chosen: was chosen before"


def test_a_demand_follows_from_spec_and_status() -> None:
    resource = LoRAAdapter.model_validate(
        {
            "metadata": {"name": "a", "namespace": "t"},
            "spec": {
                "baseModel": "b",
                "poolRef": {"name": "p"},
                "source": {"http": {"url": "http://x"}},
                "placement": {"policy": "Spread", "replicas": 2},
                "pinned": True,
                "priority": 7,
            },
            "status": {
                "sizeBytes": 5,
                "rank": 4,
                "digest": "sha256:1",
                "engines": [{"podName": "p-0"}],
            },
        }
    )
    assert AdapterDemand.from_adapter(resource) == AdapterDemand(
        key="t/a",
        base_model="b",
        size_bytes=5,
        rank=4,
        policy=Policy.SPREAD,
        replicas=2,
        residency=Residency.GPU,
        priority=7,
        digest="sha256:1",
        current=frozenset({"p-0"}),
    )
