"""When engines are recycled: tables, and whole pools that are recycled step by step."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from lorafleet_operator.api.v1alpha1 import RecycleRule, RecycleWhen, Recycling
from lorafleet_operator.recycle import Candidate, Due, Step, all_due, choose, next_step, why_due
from lorafleet_operator.recycling import growth, loads
from operator_builders import engine as view_of

NOW = datetime(2026, 11, 30, tzinfo=UTC)
MIB = 1 << 20
RULE = RecycleRule(max_loads=100, max_host_growth_per_load="1Mi", drain_seconds=60)


def engine(name: str = "e-0", **changes: Any) -> Candidate:
    return replace(Candidate(name, f"uid-{name}", f"uid-{name}/i1"), **changes)


def going(name: str = "e-0", seconds: float = 30) -> Recycling:
    return Recycling(
        pod_name=name, engine=f"uid-{name}/i1", since=NOW - timedelta(seconds=seconds), message="x"
    )


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"loads": 100, "growth": MIB}, ""),
        ({"loads": 101}, "101 loads are more than 100"),
        (
            {"growth": 3 * MIB // 2},
            "grew by 1.50 MiB of host memory with each load, more than 1.00",
        ),
        ({"growth": None}, ""),
    ],
)
def test_an_engine_is_due(changes: dict[str, Any], why: str) -> None:
    assert why_due(engine(**changes), RULE) == why


@pytest.mark.parametrize(
    ("pool", "chosen", "waits"),
    [
        ([engine(loads=101), engine("e-1")], "e-0", "101 loads"),
        ([engine("e-1", loads=102), engine(loads=101)], "e-0", "101 loads"),
        (
            [engine(loads=101)],
            None,
            "e-0: 101 loads are more than 100; 0 other engines take traffic",
        ),
        (
            [engine(loads=101), engine("e-1", open=False)],
            None,
            "0 other engines take traffic, 1 have",
        ),
        ([engine(loads=101, plugin=False), engine("e-1")], None, "without the plugin"),
        ([engine(loads=101, starts_again=False), engine("e-1")], None, "restartPolicy"),
        ([engine(loads=101, takes_orders=False), engine("e-1")], None, ""),
        ([engine(loads=101, plugin=False), engine("e-1", loads=102)], "e-1", "102 loads"),
    ],
)
def test_the_next_engine(pool: list[Candidate], chosen: str | None, waits: str) -> None:
    found, text = choose(pool, RULE, all_due(pool, RULE, {}, NOW), NOW)
    assert (found and found.pod_name) == chosen
    assert waits in text


HELD = RecycleRule(max_loads=100, when=RecycleWhen.SAFE_POINT)
AT_LAST = RecycleRule(max_loads=100, when=RecycleWhen.SAFE_POINT, max_wait_seconds=60)


@pytest.mark.parametrize(
    ("why", "rule", "waited", "safe_point", "waits"),
    [
        ("nobody has said that it may", HELD, 10**9, False, "waits for a safe point (and 1 more)"),
        ("a trainer says so", HELD, 0, True, ""),
        ("not long enough waited for", AT_LAST, 59, False, "waits for a safe point"),
        ("long enough waited for", AT_LAST, 60, False, ""),
        ("no safe point is needed", RULE, 0, False, ""),
        ("safe points mean nothing here", RULE, 0, True, ""),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_due_engine_waits_for_a_safe_point(
    why: str, rule: RecycleRule, waited: float, safe_point: bool, waits: str
) -> None:
    since = NOW - timedelta(seconds=waited)
    pool = [engine(loads=101), engine("e-1", loads=102), engine("e-2")]
    due = all_due(pool, rule, {each.instance: since for each in pool}, NOW)
    found, text = choose(pool, rule, due, NOW, safe_point=safe_point)
    assert (found is None, waits in text) == (bool(waits), True)


def test_each_engine_waits_for_its_own_time_and_a_new_vllm_from_the_start() -> None:
    pool = [engine(loads=101), engine("e-1", loads=101), engine("e-2")]
    before = {"uid-e-0/i0": NOW - timedelta(days=1), "uid-e-1/i1": NOW - timedelta(seconds=60)}
    due = all_due(pool, AT_LAST, before, NOW)
    assert due["e-0"].since == NOW
    found, _ = choose(pool, AT_LAST, due, NOW)
    assert found is not None
    assert found.pod_name == "e-1"


@pytest.mark.parametrize(
    ("changes", "waits"),
    [
        ({"plugin": False}, "without the plugin"),
        ({"starts_again": False}, "restartPolicy"),
        ({}, "waits for a safe point"),
    ],
)
def test_what_can_never_be_is_told_before_what_is_waited_for(
    changes: dict[str, Any], waits: str
) -> None:
    pool = [engine(loads=101, **changes)]
    assert waits in choose(pool, HELD, all_due(pool, HELD, {}, NOW), NOW)[1]
    _, text = choose([engine(loads=101)], HELD, {"e-0": Due("x", NOW)}, NOW, safe_point=True)
    assert text == "e-0: x; 0 other engines take traffic, 1 have to"


@pytest.mark.parametrize(
    ("why", "seconds", "me", "step"),
    [
        ("routers have to hear of it", 4, {}, Step.WAIT),
        ("nothing runs", 5, {}, Step.ASK),
        ("requests run", 59, {"in_flight": 2}, Step.WAIT),
        ("they had their time", 60, {"in_flight": 2}, Step.FORCE),
        ("vLLM has ended", 10, {"instance": "", "open": False, "takes_orders": False}, Step.WAIT),
        ("a new one warms up", 90, {"instance": "uid-e-0/i2", "open": False}, Step.WAIT),
        ("a new one takes traffic", 10, {"instance": "uid-e-0/i2"}, Step.RETURNED),
        (
            "marked for drain meanwhile",
            10,
            {"instance": "uid-e-0/i2", "open": False, "drained": True},
            Step.RETURNED,
        ),
        ("long enough waited for", 661, {"instance": "uid-e-0/i2", "open": False}, Step.RETURNED),
        ("another pod of that name", 10, {"pod_uid": "uid-new", "instance": ""}, Step.DROP),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_how_far_it_has_come(why: str, seconds: float, me: dict[str, Any], step: Step) -> None:
    pool = [engine(**me), engine("e-1")]
    assert next_step(going(seconds=seconds), pool, RULE, NOW, warm_seconds=600) is step


def test_it_serves_again_when_others_fail_meanwhile_or_the_rule_is_gone() -> None:
    alone = [engine(open=False), engine("e-1", open=False)]
    assert next_step(going(), alone, RULE, NOW, warm_seconds=600) is Step.DROP
    both = [engine(open=False), engine("e-1")]
    assert next_step(going(), both, None, NOW, warm_seconds=600) is Step.DROP
    assert next_step(going("e-9"), both, RULE, NOW, warm_seconds=600) is Step.DROP


@given(
    st.lists(
        st.builds(
            engine,
            st.uuids().map(str),
            open=st.booleans(),
            takes_orders=st.booleans(),
            loads=st.integers(0, 200),
            in_flight=st.integers(0, 2),
            starts_again=st.booleans(),
        ),
        max_size=6,
    ),
    st.integers(0, 5),
)
def test_no_engine_is_ended_below_the_minimum_of_those_that_take_traffic(
    pool: list[Candidate], least: int
) -> None:
    rule = RecycleRule(max_loads=100, min_ready_engines=least)
    chosen, _ = choose(pool, rule, all_due(pool, rule, {}, NOW), NOW)
    if chosen is None:
        return
    assert why_due(chosen, rule)
    assert sum(each.open for each in pool if each is not chosen) >= least
    begun = Recycling(pod_name=chosen.pod_name, engine=chosen.instance, since=NOW)
    later = NOW + timedelta(seconds=rule.drain_seconds)
    fewer = [replace(each, open=False) for each in pool]
    step = next_step(begun, fewer, rule, later, warm_seconds=1)
    assert step is (Step.FORCE if least == 0 else Step.DROP)


def workers(**fields: int) -> pb.WorkerMemory:
    return pb.WorkerMemory(**fields)


def test_growth_is_that_of_the_worker_that_grew_most_once_there_were_enough_loads() -> None:
    early = workers(loads=20, private_host_bytes=9 << 30, baseline_host_bytes=1, baseline_loads=8)
    assert growth(view_of("e-0", workers=[early])) is None
    calm = workers(loads=48, private_host_bytes=MIB, baseline_host_bytes=MIB, baseline_loads=8)
    grown = workers(
        loads=48, private_host_bytes=81 * MIB, baseline_host_bytes=MIB, baseline_loads=8
    )
    both = view_of("e-0", workers=[calm, grown])
    assert (growth(both), loads(both)) == (2 * MIB, 48)
    silent = view_of("e-0", workers=[workers(loads=48, private_host_bytes=81 * MIB)])
    assert growth(silent) is None
