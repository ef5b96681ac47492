"""Until when a pool's safe point is open: by the calls here, and by what the status says."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lorafleet.errors import StagingBusy
from lorafleet_operator.api.v1alpha1 import Recycling, SafePoint
from lorafleet_operator.push.safe_point import status_of
from lorafleet_operator.recycle import Candidate, Due
from lorafleet_operator.recycling import Recycled
from lorafleet_operator.safe_points import (
    LEASE_SECONDS,
    MOST_OF_A_POOL,
    MOST_OF_AN_ACCOUNT,
    SafePoints,
    safe_point,
)

NOW = datetime(2026, 11, 30, tzinfo=UTC)


def until(seconds: float, *accounts: str) -> SafePoint:
    return SafePoint(open_until=NOW + timedelta(seconds=seconds), opened_by=list(accounts))


@pytest.mark.parametrize(
    ("why", "before", "accounts", "after"),
    [
        ("nobody ever", None, None, None),
        ("a clock that was set back by an hour", until(3600, "a"), None, None),
        ("the same while a call is open", until(3600, "a"), ["a"], until(30, "a")),
        ("a call begins", None, ["b"], until(30, "b")),
        ("it has time left", until(20, "a"), ["b", "a", "b"], until(20, "a", "b")),
        ("it is to be renewed", until(14, "a"), ["a"], until(30, "a")),
        ("the last call ended here", until(29, "a"), [], None),
        ("an operator before left it", until(1, "a"), None, until(1, "a")),
        ("and nobody came back", until(0, "a"), None, None),
        ("somebody came back", until(1, "a"), ["a"], until(30, "a")),
        (
            "more than are shown",
            None,
            [f"a{n}" for n in range(9)],
            until(30, *[f"a{n}" for n in range(8)]),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_the_status_says(
    why: str, before: SafePoint | None, accounts: list[str] | None, after: SafePoint | None
) -> None:
    assert safe_point(before, accounts, NOW) == after


@given(st.lists(st.tuples(st.sampled_from([None, (), ("a",)]), st.integers(0, 40))))
def test_it_is_never_open_longer_than_its_lease_after_the_last_call(
    course: list[tuple[tuple[str, ...] | None, int]],
) -> None:
    found, now, last = None, NOW, None
    for accounts, seconds in course:
        now += timedelta(seconds=seconds)
        found = safe_point(found, accounts, now)
        last = now if accounts else last
        assert not accounts or found is not None
        if found is not None:
            assert last is not None
            assert now < found.open_until <= last + timedelta(seconds=LEASE_SECONDS)


def engine(name: str, **changes: Any) -> Candidate:
    return replace(Candidate(name, f"uid-{name}", f"uid-{name}/i1"), **changes)


DUE = {"e-0": Due("101 loads", NOW), "e-1": Due("102 loads", NOW)}
GOING = Recycling(pod_name="e-0", engine="uid-e-0/i1", since=NOW, message="101 loads")


@pytest.mark.parametrize(
    ("why", "seen", "done", "message", "due"),
    [
        ("none is due", Recycled(), True, "no engine is due", set()),
        ("one is next", Recycled(due=DUE), False, "due: e-0, e-1", {"e-0", "e-1"}),
        (
            "too few take traffic",
            Recycled(due=DUE, message="e-0: 0 other engines take traffic, 1 have to"),
            False,
            "e-0: 0 other engines take traffic, 1 have to",
            {"e-0", "e-1"},
        ),
        (
            "one is on its way",
            Recycled(GOING, due=DUE),
            False,
            "e-0 is being recycled: 101 loads",
            {"e-0", "e-1"},
        ),
        ("the last one is", Recycled(GOING), False, "e-0 is being recycled: 101 loads", {"e-0"}),
        (
            "one does not answer",
            Recycled(due={"e-2": DUE["e-0"]}),
            True,
            "no engine is due",
            {"e-2"},
        ),
        (
            "one can never be",
            Recycled(due={"e-3": DUE["e-0"]}, message="e-3: without the plugin"),
            True,
            "e-3: without the plugin",
            {"e-3"},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_trainer_is_told(
    why: str, seen: Recycled, done: bool, message: str, due: set[str]
) -> None:
    engines = [
        engine("e-0", loads=101, growth=7, host_bytes=9),
        engine("e-1", loads=102),
        engine("e-2", takes_orders=False, growth=-9),
        engine("e-3", plugin=False),
    ]
    found = status_of(replace(seen, engines=engines))
    assert (found.done, found.message) == (done, message)
    assert {each.pod for each in found.engines if each.due} == due
    first, second, third, _ = found.engines
    assert third.growth_per_load == 0, "it shrank"
    assert (first.pod, first.instance, first.loads) == ("e-0", "uid-e-0/i1", 101)
    assert (first.growth_per_load, first.host_bytes, second.growth_per_load) == (7, 9, -1)


async def test_a_call_is_told_the_newest_that_a_pass_has_seen() -> None:
    points = SafePoints()
    with points.hold("ns/a", "x") as held, points.hold("ns/b", "x") as other:
        points.show("ns/a", Recycled(count=1))
        points.show("ns/a", Recycled(count=2))
        assert await held.next(60) == Recycled(count=2)
        assert await held.next(0) is None
        assert await other.next(0) is None
    points.show("ns/a", Recycled(count=3))
    assert await held.next(0) is None


def test_calls_are_counted_by_pool_and_bounded() -> None:
    points = SafePoints()
    assert points.of("ns/a") is None
    with points.hold("ns/a", "x"), points.hold("ns/a", "y"), points.hold("ns/b", "x"):
        assert points.of("ns/a") == ["x", "y"]
        points.keep(set())
        assert points.of("ns/b") == ["x"], "a call is still about it"
    assert points.of("ns/a") == []
    points.keep({"ns/a"})
    assert (points.of("ns/a"), points.of("ns/b")) == ([], None)
    held = [points.hold("ns/a", f"x{n // MOST_OF_AN_ACCOUNT}") for n in range(MOST_OF_A_POOL)]
    for each in held:
        each.__enter__()
        if len(points.of("ns/a") or ()) == MOST_OF_AN_ACCOUNT:
            with pytest.raises(StagingBusy, match="x0 holds 8 safe points of pool ns/a open"):
                points.hold("ns/a", "x0").__enter__()
    with pytest.raises(StagingBusy, match="16 calls hold safe points of pool ns/a open already"):
        points.hold("ns/a", "x").__enter__()
