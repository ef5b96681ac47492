"""Who takes traffic: a table of engines, and what holds for each."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lorafleet_operator.api.v1alpha1 import EngineTraffic, WarmPolicy, WarmSet
from lorafleet_operator.traffic import EngineFacts, Said, is_about, may_answer, traffic

NOW = datetime(2026, 11, 30, tzinfo=UTC)
ME = "uid-1/i1"
WARM = WarmSet(timeout_seconds=60)


def said(reason: str, seconds: float = 0, instance: str = "i1") -> Said:
    opened = EngineTraffic(reason).open
    return Said(opened, reason, f"engine {instance}: so", NOW - timedelta(seconds=seconds))


@pytest.mark.parametrize(
    ("why", "facts", "state"),
    [
        ("it serves all", {}, "Warm"),
        ("it lacks one", {"missing": ["t/a"]}, "Warming"),
        ("it lacks one, still", {"missing": ["t/a"], "said": said("Warming", 59)}, "Warming"),
        (
            "waited for long enough",
            {"missing": ["t/a"], "said": said("Warming", 60)},
            "WarmTimedOut",
        ),
        (
            "what an earlier vLLM was waited for does not count",
            {"missing": ["t/a"], "said": said("Warming", 60, "i0")},
            "Warming",
        ),
        ("it was warm before others came", {"missing": ["t/a"], "said": said("Warm")}, "Warm"),
        ("it was let in late", {"missing": ["t/a"], "said": said("WarmTimedOut")}, "WarmTimedOut"),
        ("vLLM restarted", {"missing": ["t/a"], "said": said("Warm", 9, "i0")}, "Warming"),
        ("vLLM does not answer", {"takes_orders": False, "said": said("Warm")}, "Warming"),
        (
            "starting takes its time",
            {"takes_orders": False, "said": said("Warming", 999)},
            "Warming",
        ),
        ("no contact", {"in_contact": False, "said": said("Warm")}, "Unknown"),
        ("drain, others are not ready", {"draining": True, "kept_for": ["t/a"]}, "Draining"),
        ("drain, others have all", {"draining": True}, "Drained"),
        (
            "what was drained stays so",
            {"draining": True, "kept_for": ["t/a"], "said": said("Drained")},
            "Drained",
        ),
        ("drain taken back", {"said": said("Drained")}, "Warm"),
        ("drain taken back in time", {"missing": ["t/a"], "said": said("Draining")}, "Warm"),
        ("deleted while drained", {"deleting": True, "draining": True}, "Deleting"),
        ("deleted without contact", {"deleting": True, "in_contact": False}, "Deleting"),
        ("recycled", {"recycling": True, "kept_for": ["t/a"]}, "Recycling"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_engine_takes_traffic(why: str, facts: dict[str, Any], state: str) -> None:
    found, message = traffic(replace(EngineFacts(ME), **facts), WARM, NOW)
    assert (found, message.partition(": ")[0]) == (state, "engine i1")


def test_the_line_names_what_is_missing_and_how_much_more() -> None:
    facts = EngineFacts(ME, missing=[f"t/{n}" for n in range(7)])
    assert traffic(facts, WARM, NOW)[1] == "engine i1: lacks t/0, t/1, t/2, t/3, t/4 and 2 more"


def test_a_pool_may_ask_for_nothing() -> None:
    facts = EngineFacts(ME, missing=["t/a"])
    none = WarmSet(policy=WarmPolicy.NONE)
    assert traffic(facts, none, NOW)[0] is EngineTraffic.WARM
    assert traffic(replace(facts, takes_orders=False), none, NOW)[0] is EngineTraffic.WARMING


states = st.builds(
    EngineFacts,
    instance=st.sampled_from(["", ME, "uid-1/i2"]),
    in_contact=st.booleans(),
    takes_orders=st.booleans(),
    deleting=st.booleans(),
    draining=st.booleans(),
    recycling=st.booleans(),
    missing=st.sampled_from([(), ("t/a",)]),
    kept_for=st.sampled_from([(), ("t/a",)]),
    said=st.none() | st.builds(said, st.sampled_from([*EngineTraffic]), st.integers(0, 90)),
)


@given(states)
def test_nobody_is_let_in_who_goes_or_does_not_answer(facts: EngineFacts) -> None:
    state, message = traffic(facts, WARM, NOW)
    going = facts.deleting or facts.recycling or not facts.takes_orders or not facts.in_contact
    assert not (going and state.open)
    assert "\n" not in message


@given(states)
def test_what_was_said_is_said_again_until_something_changes(facts: EngineFacts) -> None:
    state, message = traffic(facts, WARM, NOW)
    if state is EngineTraffic.UNKNOWN:
        return
    again = replace(facts, said=Said(state.open, state.value, message, NOW))
    after, line = traffic(again, WARM, NOW)
    assert after is state
    assert again.said is not None
    assert is_about(again.said, facts.instance)
    assert line.partition(": ")[0] == message.partition(": ")[0]


@given(st.tuples(*[st.booleans()] * 5))
def test_requests_for_an_adapter_go_where_it_is_served_by_one_that_stays(
    flags: tuple[bool, ...],
) -> None:
    serves, deleting, draining, recycling, elsewhere = flags
    answer = may_answer(
        serves=serves,
        deleting=deleting,
        draining=draining,
        recycling=recycling,
        elsewhere=elsewhere,
    )
    assert answer == (serves and not deleting and not recycling and (not draining or not elsewhere))
