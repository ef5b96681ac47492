"""Which of a trainer's steps each engine serves, also of revisions that the spec names no more."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from lorafleet.push.connection import Operator
from lorafleet.push.revision import Revision, _behind
from lorafleet.v1alpha1 import push_pb2 as pb
from lorafleet_operator.push.progress import status_of
from lorafleet_operator.pushed_steps import pushed
from lorafleet_operator.report import report
from lorafleet_operator.resolve import resolve_push
from lorafleet_operator.world import EngineView
from operator_builders import DIGEST, OLD, adapter, engine, facts, loaded, staged

if TYPE_CHECKING:
    from lorafleet_operator.facts import Facts

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FIRST, SECOND = "sha256:" + "1" * 64, "sha256:" + "2" * 64
KNOWN = {"revision": FIRST, "fingerprint": FIRST, "step": 10}


def scene(*views: EngineView, status: dict[str, Any] | None = None, **spec: Any) -> Facts:
    """A pass over an adapter whose spec names the second push."""
    source = {"push": {"revision": SECOND, "step": 12}}
    made = adapter(source=source, status=status or {"pushed": [KNOWN]}, **spec)
    found = facts(*views, adapter=made, pushed_content=SECOND)
    resolve_push(found)
    return found


def old_on(name: str, **changes: Any) -> EngineView:
    return engine(name, loaded(OLD), staged(OLD, FIRST), **changes)


def new_on(name: str) -> EngineView:
    return engine(name, loaded(DIGEST), staged(DIGEST, SECOND))


def steps(found: Facts) -> list[tuple[str, int]]:
    return [(each.revision, each.step) for each in pushed(found)]


def test_the_status_tells_the_step_of_every_revision_that_is_still_somewhere() -> None:
    found = scene(old_on("a"), new_on("b"))
    status = report(found, NOW).status
    assert {each.pod_name: each.step for each in status.engines} == {"a": 10, "b": 12}
    assert status.step_summary == "10-12"
    assert steps(found) == [(SECOND, 12), (FIRST, 10)]
    alone = scene(new_on("a"), new_on("b"))
    assert (steps(alone), report(alone, NOW).status.step_summary) == ([(SECOND, 12)], "12")


def test_an_engine_that_has_not_answered_this_operator_may_serve_any_of_them() -> None:
    silent = EngineView(old_on("a").pod)
    assert steps(scene(silent, new_on("b"))) == [(SECOND, 12), (FIRST, 10)]
    many = [{**KNOWN, "fingerprint": f"fp-{number}"} for number in range(10)]
    assert len(pushed(scene(silent, status={"pushed": many}))) == 10
    behind = [*many[:9], KNOWN]  # what is loaded is never forgotten for what is not
    kept = steps(scene(silent, old_on("b"), status={"pushed": behind}))
    assert (len(kept), kept[1]) == (10, (FIRST, 10))


def test_the_same_content_pushed_again_is_of_the_step_that_it_was_pushed_with_last() -> None:
    again = {"revision": SECOND, "fingerprint": SECOND, "step": 11}
    assert steps(scene(new_on("a"), status={"pushed": [again]})) == [(SECOND, 12)]


def test_other_sources_have_no_steps() -> None:
    found = facts(new_on("a"), adapter=adapter(status={"pushed": [KNOWN]}))
    status = report(found, NOW).status
    assert status.pushed == []
    assert (status.engines[0].step, status.step_summary) == (None, "")


def told(*views: EngineView, known: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Return what a trainer is told by pod: revision and step."""
    body = {
        "metadata": {"namespace": "team-a", "name": "sql", "generation": 2},
        "spec": {"source": {"push": {"revision": SECOND, "step": 12}}},
        "status": {"pushed": [KNOWN] if known is None else known},
    }
    found = status_of(body, views)
    return {
        each.pod: (each.revision, each.step if each.HasField("step") else None)
        for each in found.engines
    }


def test_a_trainer_is_told_the_step_that_each_engine_serves() -> None:
    assert told(old_on("a"), new_on("b")) == {"a": (FIRST, 10), "b": (SECOND, 12)}
    assert told(old_on("a"), known=[]) == {"a": (FIRST, None)}
    taken = [{**KNOWN, "fingerprint": "as taken"}]  # of a spec with adapterName
    view = engine("a", loaded(OLD), staged(OLD, "as taken"))
    assert told(view, known=taken) == {"a": (FIRST, 10)}


@pytest.mark.parametrize(
    ("engine_", "behind"),
    [
        (pb.PushedEngine(revision=SECOND), 0),
        (pb.PushedEngine(revision=FIRST, step=10), 2),
        (pb.PushedEngine(revision=FIRST, step=0), 12),
        (pb.PushedEngine(revision=FIRST), None),
        (pb.PushedEngine(revision="newer", step=15), 0),
        (pb.PushedEngine(), None),
    ],
)
def test_staleness_counts_steps(engine_: pb.PushedEngine, behind: int | None) -> None:
    of = Revision(
        namespace="team-a",
        name="sql",
        revision=SECOND,
        step=12,
        generation=2,
        sent_bytes=0,
        unchanged=False,
        served_name="team-a/sql",
        _operator=Operator("127.0.0.1:1", lambda: "", None, 0.0),
    )
    assert _behind(of, engine_, pb.PushStatus(revision=SECOND, step=12)) == behind
