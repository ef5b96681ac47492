"""The judge of the chaos run: which answers are right at which time."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "bench" / "chaos"))

from wishes import Wish, Wishes


def judge() -> Wishes:
    """An adapter that got its first content at 10 (Ready at 20) and another at 30."""
    wish = Wish([(10.0, "old"), (30.0, "new")], settled=0, settled_at=20.0, touched_at=30.0)
    return Wishes({"old": "t1", "new": "t2", "other": "t3"}, {"sql": wish})


def ready(wishes: Wishes, at: float) -> Wishes:
    wishes.written("sql", 7)
    wishes.ready("sql", "new", 7)
    wishes.now["sql"].settled_at = at
    return wishes


def test_while_a_revision_goes_out_both_answers_are_right_and_no_other() -> None:
    assert judge().right("sql", 25, 35) == {"t1", "t2"}
    assert judge().right("sql", 31, 32) == {"t1", "t2"}


def test_a_request_that_ended_before_the_update_may_not_have_the_new_answer() -> None:
    assert judge().right("sql", 25, 29) == {"t1"}


def test_once_the_new_revision_is_ready_a_later_request_may_not_have_the_old_answer() -> None:
    wishes = ready(judge(), 40.0)
    assert wishes.right("sql", 41, 42) == {"t2"}
    assert wishes.right("sql", 39, 42) == {"t1", "t2"}, "it began before"


def test_only_an_adapter_that_is_settled_and_let_alone_must_answer() -> None:
    assert not judge().untouched("sql", 35)
    wishes = ready(judge(), 40.0)
    assert wishes.untouched("sql", 41)
    assert not wishes.untouched("sql", 39), "it was changed after that"
    wishes.unwant("sql")
    assert not wishes.untouched("sql", 41)


def test_a_status_of_an_earlier_manifest_settles_nothing_though_it_names_the_content() -> None:
    wishes = judge()
    wishes.want("sql", "old")  # back to what was Ready before
    wishes.ready("sql", "old", 6)
    wishes.written("sql", 7)
    wishes.ready("sql", "old", 6)
    wishes.ready("sql", "new", 7)
    assert wishes.now["sql"].settled == 0
    wishes.ready("sql", "old", 7)
    assert wishes.now["sql"].settled == 2
