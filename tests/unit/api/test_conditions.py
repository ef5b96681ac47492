"""Conditions: the table of errors, merging, and how Ready follows from the others."""

from __future__ import annotations

import gc
import inspect
from datetime import UTC, datetime, timedelta

import pytest
from lorafleet import errors
from lorafleet_operator.api.conditions import (
    OUTCOMES,
    ConditionType,
    Reason,
    condition,
    merge_conditions,
    outcome_of,
    ready_condition,
)
from lorafleet_operator.api.meta import Condition

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1)


def seen(
    type_: ConditionType,
    status: bool | None,
    reason: Reason,
    at: datetime = NOW,
    message: str = "because",
) -> Condition:
    return condition(type_, status, reason, message, generation=3, now=at)


@pytest.mark.parametrize("cls", errors.leaves(), ids=lambda cls: cls.__name__)
def test_every_error_has_an_outcome_that_agrees_with_its_class(
    cls: type[errors.LorafleetError],
) -> None:
    outcome = OUTCOMES[cls]
    assert outcome.reason == cls.reason
    assert outcome.terminal == cls.terminal
    assert outcome.condition in (
        ConditionType.SOURCE_RESOLVED,
        ConditionType.PLACED,
        ConditionType.LOADED,
    )


def test_table_names_no_class_that_is_gone() -> None:
    assert set(OUTCOMES) == set(errors.leaves())


def test_an_error_without_an_entry_means_what_its_parent_means() -> None:
    class DimensionMismatch(errors.InvalidAdapter):
        pass

    assert outcome_of(DimensionMismatch("x")) == OUTCOMES[errors.InvalidAdapter]
    del DimensionMismatch
    gc.collect()  # classes are cyclic; the other tests list the subclasses


def test_every_reason_and_condition_type_is_documented_where_it_is_defined() -> None:
    for enum in (Reason, ConditionType):
        lines = [line.strip() for line in inspect.getsource(enum).splitlines()]
        for member in enum:
            at = lines.index(f'{member.name} = "{member.value}"')
            assert lines[at + 1].startswith('"""'), f"{member} has no docstring"


def test_unchanged_status_keeps_its_transition_time_though_reason_and_message_change() -> None:
    before = [seen(ConditionType.LOADED, False, Reason.STAGING)]
    after = merge_conditions(
        before, [seen(ConditionType.LOADED, False, Reason.STAGING_FULL, LATER, "full")]
    )
    assert [(c.reason, c.message) for c in after] == [("StagingFull", "full")]
    assert after[0].last_transition_time == NOW


def test_changed_status_takes_the_new_time() -> None:
    before = [seen(ConditionType.LOADED, False, Reason.STAGING)]
    after = merge_conditions(before, [seen(ConditionType.LOADED, True, Reason.LOADED, LATER)])
    assert after[0].last_transition_time == LATER


def test_types_that_were_not_observed_stay_and_order_follows_the_flow() -> None:
    foreign = Condition(
        type="example.com/Checked", status="True", last_transition_time=NOW, reason="X", message=""
    )
    before = [foreign, seen(ConditionType.READY, None, Reason.WAITING)]
    after = merge_conditions(before, [seen(ConditionType.PLACED, True, Reason.PLACED)])
    assert [c.type for c in after] == ["Placed", "Ready", "example.com/Checked"]


def test_merging_the_same_observation_twice_changes_nothing() -> None:
    observed = [
        seen(ConditionType.SOURCE_RESOLVED, True, Reason.RESOLVED),
        seen(ConditionType.PLACED, False, Reason.NO_CAPACITY),
    ]
    once = merge_conditions([], observed)
    assert merge_conditions(once, observed) == once


def test_message_becomes_one_line_and_time_whole_seconds() -> None:
    made = condition(
        ConditionType.LOADED,
        False,
        Reason.ENGINE_REJECTED,
        "one\n  two\ttwo",
        generation=1,
        now=NOW.replace(microsecond=5),
    )
    assert made.message == "one two two"
    assert made.to_api()["lastTransitionTime"] == "2026-01-02T03:04:05Z"


def test_ready_is_true_only_when_all_are_true() -> None:
    good = [
        seen(ConditionType.SOURCE_RESOLVED, True, Reason.RESOLVED),
        seen(ConditionType.PLACED, True, Reason.PLACED),
        seen(ConditionType.LOADED, True, Reason.LOADED),
    ]
    ready = ready_condition(good, generation=7, now=LATER)
    assert (ready.type, ready.status, ready.reason) == ("Ready", "True", "Ready")
    assert ready.observed_generation == 7


def test_ready_repeats_the_first_condition_that_is_not_true() -> None:
    observed = [
        seen(ConditionType.LOADED, False, Reason.STAGING),
        seen(ConditionType.PLACED, False, Reason.NO_CAPACITY, message="1 of 2 engines"),
        seen(ConditionType.SOURCE_RESOLVED, True, Reason.RESOLVED),
    ]
    ready = ready_condition(observed, generation=7, now=LATER)
    assert (ready.status, ready.reason, ready.message) == ("False", "NoCapacity", "1 of 2 engines")
    assert ready.last_transition_time == LATER


def test_ready_names_what_is_wrong_rather_than_what_waits_for_it() -> None:
    observed = [
        seen(ConditionType.SOURCE_RESOLVED, None, Reason.RESOLVING),
        seen(ConditionType.PLACED, False, Reason.POOL_NOT_FOUND),
        seen(ConditionType.LOADED, None, Reason.WAITING),
    ]
    ready = ready_condition(observed, generation=7, now=LATER)
    assert (ready.status, ready.reason) == ("False", "PoolNotFound")


def test_ready_is_unknown_while_an_earlier_condition_is_missing() -> None:
    ready = ready_condition([], generation=1, now=NOW)
    assert (ready.status, ready.reason) == ("Unknown", "Waiting")
    assert "SourceResolved" in ready.message
