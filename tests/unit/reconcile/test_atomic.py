"""When a revision that all engines serve or none is decided, and what holds for every fleet."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from any_holdings import any_holdings, any_loaded
from hypothesis import given
from hypothesis import strategies as st
from lorafleet.errors import EngineRejected
from lorafleet_operator import atomic, rollout
from lorafleet_operator.api.v1alpha1 import Revision
from lorafleet_operator.atomic import Member
from lorafleet_operator.facts import Facts, Placed
from lorafleet_operator.report import report
from lorafleet_operator.rollout import Holding, Loaded, Wanted
from lorafleet_operator.world import EngineView
from operator_builders import DIGEST, FINGERPRINT, OLD, adapter, engine, facts, loaded, staged

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NAME = "team-a/sql"
STABLE = {"digest": OLD, "fingerprint": "fp-0"}
OPEN = {"digest": DIGEST, "fingerprint": FINGERPRINT}
DECIDED = {**OPEN, "time": "2026-01-01T00:00:00Z", "engines": ["a", "b"]}

MEMBERS = st.lists(
    st.builds(
        Member,
        pod=st.sampled_from("abcdef"),
        answers=st.booleans(),
        has=st.booleans(),
        loaded=st.booleans(),
        serves=st.booleans(),
        refuses=st.booleans(),
    ),
    max_size=6,
    unique_by=lambda each: each.pod,
)


@pytest.mark.parametrize(
    ("members", "decides", "waits_for"),
    [
        ([], False, ""),
        ([Member("a", loaded=True)], True, ""),
        ([Member("a", loaded=True), Member("b")], False, ""),
        ([Member("a", loaded=True), Member("b", loaded=True)], True, ""),
        ([Member("a", loaded=True), Member("b", answers=False, loaded=True)], False, "b"),
        ([Member("b", answers=False), Member("a", answers=False)], False, "a"),
        ([Member("a", loaded=True, serves=True), Member("b")], False, ""),
    ],
)
def test_a_decision_needs_every_engine_at_the_same_time(
    members: list[Member], decides: bool, waits_for: str
) -> None:
    assert atomic.may_decide(members) is decides
    found = atomic.gather(Revision(digest=DIGEST), members)
    assert found.waiting_for == waits_for


@pytest.mark.parametrize(
    ("member", "done"),
    [
        (Member("a", has=True, loaded=True, serves=True), True),
        (Member("a", has=True, loaded=True), False),
        (Member("a", has=True, refuses=True), True),  # it would hold up all that follows
        (Member("a"), True),  # a new one, which gets the next revision at once
        (Member("a", answers=False), False),  # nobody knows what it has
    ],
)
def test_what_follows_a_decision_waits_for_those_who_can_carry_it_out(
    member: Member, done: bool
) -> None:
    assert atomic.is_done([Member("z", has=True, serves=True), member]) is done


@given(MEMBERS)
def test_no_decision_without_any_of_the_engines(members: list[Member]) -> None:
    if atomic.may_decide(members):
        found = atomic.decide(atomic.gather(Revision(), members), NOW)
        assert found.engines == sorted(each.pod for each in members)
        assert found.engine_count == len(members)
        assert found.waiting_for == ""
        for number, each in enumerate(members):
            for worse in (replace(each, answers=False), replace(each, loaded=False)):
                others = [*members[:number], worse, *members[number + 1 :]]
                assert not atomic.may_decide(others)


LOADED = any_loaded([OLD, DIGEST], [NAME])
HOLDINGS = any_holdings(DIGEST, st.lists(LOADED, max_size=2, unique_by=lambda each: each.published))


@given(HOLDINGS)
def test_while_nothing_is_decided_no_name_moves_and_none_is_taken_away(
    holdings: tuple[Holding, ...],
) -> None:
    wanted = Wanted(NAME, holdings=holdings, decided=False)
    assert rollout.to_publish(wanted) == []
    assert rollout.to_make_room(wanted) == []
    if any(each.desired and each.refused for each in holdings):
        assert rollout.to_load(wanted) == rollout.to_stage(wanted) == []


@given(HOLDINGS)
def test_once_it_is_decided_every_engine_that_has_it_moves_and_none_goes_back(
    holdings: tuple[Holding, ...],
) -> None:
    wanted = Wanted(NAME, holdings=holdings, decided=True)
    moving = rollout.to_publish(wanted)
    for each in wanted.desired():
        if each.takes_orders and rollout.has_loaded(wanted, each):
            assert rollout.serves(wanted, each) or each.engine in moving
    assert all(served.digest == DIGEST for _, served in rollout.to_roll_back(wanted))


def holding(name: str, digest: str, **changes: Any) -> Holding:
    return Holding(name, digest=DIGEST, loaded=(Loaded(digest, NAME, published=True),), **changes)


@pytest.mark.parametrize(
    ("why", "decided", "left", "gone"),
    [
        ("it serves what was decided: make before break", True, holding("c", DIGEST), []),
        ("it serves another one", True, holding("c", OLD), [("c", NAME)]),
        ("a drained one too", True, holding("c", OLD, leaving=True), [("c", NAME)]),
        ("nothing is decided", False, holding("c", OLD), []),
        ("by default others are waited for", None, holding("c", OLD), []),
    ],
)
def test_after_the_decision_no_engine_that_left_the_plan_goes_on_with_another_revision(
    why: str, decided: bool | None, left: Holding, gone: list[tuple[str, str]]
) -> None:
    del why
    left = replace(left, desired=False)
    away = holding("b", OLD, takes_orders=False)
    wanted = Wanted(NAME, holdings=(holding("a", DIGEST), away, left), decided=decided)
    assert rollout.to_retire(wanted) == gone
    first = Wanted(NAME, holdings=(holding("a", OLD), away, left), decided=decided)
    assert rollout.to_retire(first) == [], "nobody serves it yet"


def old_on(name: str, *more: Any, **changes: Any) -> EngineView:
    return engine(name, loaded(OLD), staged(OLD, "fp-0"), *more, **changes)


def both_on(name: str, **changes: Any) -> EngineView:
    return old_on(name, loaded(DIGEST, published=False), staged(), **changes)


def new_on(name: str, **changes: Any) -> EngineView:
    return engine(name, loaded(DIGEST), staged(), staged(OLD, "fp-0"), **changes)


def updating(*views: EngineView, status: dict[str, Any] | None = None, **spec: Any) -> Facts:
    known = {"stable": STABLE, "digest": OLD, **(status or {})}
    made = adapter(status=known, **{"rollout": {"atomic": True}, **spec})
    return facts(*views, adapter=made)


def contents(found: Facts) -> list[str]:
    course = found.course(NOW)
    return [course.content_for(view.uid) for view in found.engines]


def test_engines_load_the_newest_content_and_the_status_says_that_the_old_one_is_served() -> None:
    found = updating(both_on("a"), old_on("b", staged()))
    course = found.course(NOW)
    assert contents(found) == [FINGERPRINT] * 2
    assert (course.main, course.decided, course.unanimous) == ("fp-0", False, False)
    status = report(found, NOW).status
    assert status.digest == OLD
    assert status.rollout is not None
    assert (status.rollout.digest, status.rollout.engines) == (DIGEST, ["a"])
    assert [each.canary for each in status.engines] == [False, False]
    assert updating(both_on("a"), both_on("b")).course(NOW).unanimous
    for state in ({"draining": True}, {"unproved": True}):  # refused, or not proved yet
        other = old_on("b", loaded(DIGEST, published=False, **state), staged())
        assert not updating(both_on("a"), other).course(NOW).unanimous


def test_who_serves_nothing_gets_the_old_revision_back_while_nothing_is_decided() -> None:
    idle = engine("b", loaded(OLD, published=False), staged(OLD, "fp-0"), staged())
    assert contents(updating(both_on("a"), idle)) == [FINGERPRINT, "fp-0"]
    fresh = engine("b")
    assert contents(updating(both_on("a"), fresh)) == [FINGERPRINT] * 2
    unable = updating(both_on("a"), idle)
    unable.unable.add("uid-b")
    assert contents(unable) == [FINGERPRINT] * 2
    assert contents(updating(new_on("a"), idle, status={"decided": DECIDED})) == [FINGERPRINT] * 2


def test_what_is_decided_is_wanted_until_everybody_has_it_whatever_the_source_holds() -> None:
    newer: dict[str, Any] = {"decided": {**DECIDED, "fingerprint": "fp-1"}}
    found = updating(new_on("a"), both_on("b"), status=newer)
    found.fingerprint = "fp-2"
    course = found.course(NOW)
    assert (course.newest, course.decided) == ("fp-1", True)
    assert course.stable == Revision(digest=DIGEST, fingerprint="fp-1")
    found.fingerprint = ""
    assert found.course(NOW).newest == "fp-1"
    assert found.may_act

    done = updating(new_on("a"), new_on("b"), status=newer)
    done.fingerprint = "fp-2"
    course = done.course(NOW)
    assert (course.newest, course.decided, course.main) == ("fp-2", False, "fp-1")
    status = report(done, NOW).status
    assert status.stable == Revision(digest=DIGEST, fingerprint="fp-1")
    assert status.rollout is not None
    assert (status.rollout.fingerprint, status.decided) == ("fp-2", None)


def test_a_refusal_before_the_decision_gives_it_up_and_one_after_it_does_not() -> None:
    error = EngineRejected("no kernel for this")
    found = updating(both_on("a"), old_on("b", staged()))
    found.failures["uid-b"] = (3, error)
    course = found.course(NOW)
    assert course.given_up is not None
    assert course.rollout is None
    assert contents(found) == ["fp-0"] * 2
    final = updating(both_on("a"), old_on("b", staged()))
    final.refusals["uid-b"] = error  # by its profile: the condition says so, and it may change
    assert final.course(NOW).given_up is None
    final.troubles["uid-b"] = error  # by itself, in this pass
    assert final.course(NOW).given_up is not None
    decided = updating(new_on("a"), old_on("b", staged()), status={"decided": DECIDED})
    decided.failures["uid-b"] = (3, error)
    assert decided.course(NOW).given_up is None
    assert contents(decided) == [FINGERPRINT] * 2


def test_an_engine_that_the_plan_has_no_room_for_any_more_holds_the_decision_up() -> None:
    views = [both_on("a"), old_on("b")]
    found = updating(*views)
    found.placed = Placed(pods=("a",), wanted=2)
    assert not found.course(NOW).unanimous
    for placed in (
        Placed(pods=("a",), wanted=1),  # it is not one of the adapter's any more
        Placed(pods=("a",), wanted=2, displaced=frozenset({"b"})),
    ):
        found.placed = placed
        assert found.course(NOW).unanimous
    silent = updating(both_on("a"), old_on("b", problem="x"))
    silent.placed = Placed(pods=("a",), wanted=2)
    assert silent.course(NOW).unanimous, "the pool's grace is over"


def test_an_engine_that_has_not_answered_this_operator_is_waited_for_too() -> None:
    silent = EngineView(old_on("b").pod)
    alone = Placed(pods=("a",), wanted=1)
    found = updating(both_on("a"), silent, status={"engines": [{"podName": "b"}]})
    found.placed, found.awaited = alone, frozenset({"uid-b"})
    assert not found.course(NOW).unanimous
    status = report(found, NOW).status
    assert [each.pod_name for each in status.engines] == ["b", "a"]
    assert status.rollout is not None
    assert status.rollout.waiting_for == "b"

    found = updating(new_on("a"), silent, status={"decided": DECIDED})
    found.placed, found.awaited = alone, frozenset({"uid-b"})
    status = report(found, NOW).status
    assert status.decided is not None
    assert status.decided.waiting_for == "b"
    found.awaited = frozenset()
    assert report(found, NOW).status.decided is None


def test_a_settled_adapter_says_nothing_of_it() -> None:
    found = updating(new_on("a"), new_on("b"), status={"decided": DECIDED})
    status = report(found, NOW).status
    assert (status.rollout, status.decided) == (None, None)
    assert status.stable == Revision(digest=DIGEST, fingerprint=FINGERPRINT)
    assert status.history == [OLD]
