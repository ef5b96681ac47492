"""Trials: who takes part, for how long, and what ends them; and which content an engine is to serve."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from known_fleet import KnownFleet, Link, Links
from lorafleet.errors import EngineRejected
from lorafleet_operator.api.v1alpha1 import Canary, CanaryStatus, Revision
from lorafleet_operator.canary import Candidate, choose, failure, watch
from lorafleet_operator.facts import Facts, Placed
from lorafleet_operator.memory import Verdict
from lorafleet_operator.observe import observe
from lorafleet_operator.report import report
from lorafleet_operator.world import World
from operator_builders import (
    DIGEST,
    FINGERPRINT,
    OLD,
    adapter,
    engine,
    facts,
    loaded,
    pool,
    staged,
)

if TYPE_CHECKING:
    from lorafleet_operator.course import Course
    from lorafleet_operator.world import EngineView

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BEGUN = NOW - timedelta(seconds=30)
NEW = Revision(digest=DIGEST, fingerprint=FINGERPRINT)
STABLE = {"digest": OLD, "fingerprint": "fp-0"}
TRY_ONE = {"canary": {"engines": 1, "holdSeconds": 60, "maxErrorRate": "10%"}}

CANDIDATES = st.lists(
    st.builds(
        Candidate,
        engine=st.sampled_from([f"e{n}" for n in range(9)]),
        serves=st.booleans(),
        loaded=st.booleans(),
        marked=st.booleans(),
        well=st.booleans(),
    ),
    unique_by=lambda each: each.engine,
    max_size=9,
)


@given(CANDIDATES, st.integers(1, 9))
def test_a_trial_never_exceeds_its_share_and_keeps_those_that_serve(
    candidates: list[Candidate], count: int
) -> None:
    chosen = choose(candidates, count)
    assert len(chosen) == min(count, len(candidates))
    serving = {each.engine for each in candidates if each.serves}
    assert serving <= chosen or chosen <= serving
    assert choose(list(reversed(candidates)), count) == chosen


@given(CANDIDATES, st.integers(1, 9))
def test_an_engine_that_was_chosen_stays_when_the_others_change_their_mind(
    candidates: list[Candidate], count: int
) -> None:
    chosen = choose(candidates, count)
    after = [replace(e, marked=e.engine in chosen, serves=False, loaded=False) for e in candidates]
    assert choose(after, count) == chosen


def trial(**fields: Any) -> CanaryStatus:
    return CanaryStatus.model_validate(
        {"digest": DIGEST, "fingerprint": FINGERPRINT, "since": BEGUN, **fields}
    )


def tried(requests: int = 0, errors: int = 0, **fields: Any) -> Candidate:
    return Candidate("a", **{"serves": True, "requests": requests, "errors": errors, **fields})


@pytest.mark.parametrize(
    ("before", "engines", "hold", "since", "promoted"),
    [
        (None, [tried()], 60, NOW, False),
        (None, [tried(), tried(serves=False)], 60, None, False),
        (None, [tried(well=False)], 60, None, False),
        (None, [tried()], 0, NOW, True),
        (trial(), [tried()], 60, BEGUN, False),
        (trial(), [tried()], 30, BEGUN, True),
        (trial(), [tried(well=False)], 30, BEGUN, False),  # its time is over, but it fell ill
        (trial(), [], 30, BEGUN, False),
        (trial(since=None), [tried()], 60, NOW, False),
    ],
)
def test_a_trial_is_held_from_when_all_serve(
    before: CanaryStatus | None,
    engines: list[Candidate],
    hold: int,
    since: datetime | None,
    promoted: bool,
) -> None:
    found = watch(Canary(hold_seconds=hold), NEW, before, engines, NOW)
    assert (found.since, found.promoted, found.engines) == (since, promoted, len(engines))


@pytest.mark.parametrize(
    ("requests", "errors", "promoted", "fails"),
    [
        (0, 0, True, False),
        (1, 1, False, False),  # one request that fails first is no verdict
        (1, 1, True, True),  # at the end it is
        (2, 2, False, True),
        (100, 10, True, False),
        (100, 11, False, True),
        (1000, 99, False, False),
    ],
)
def test_a_trial_fails_by_the_share_of_failed_requests(
    requests: int, errors: int, promoted: bool, fails: bool
) -> None:
    found = failure(
        Canary(max_error_rate="10%"), trial(requests=requests, errors=errors, promoted=promoted)
    )
    assert bool(found) == fails
    assert not fails or f"{errors} of {requests} requests failed" in found


# Courses.


def old_on(name: str, *more: Any, **fields: Any) -> EngineView:
    entries = (loaded(OLD), staged(OLD, "fp-0"), *more)
    return engine(name, *entries, **fields)


def new_on(name: str, **counts: int) -> EngineView:
    return engine(name, loaded(DIGEST, **counts), staged(), staged(OLD, "fp-0"))


def updating(*engines: EngineView, status: dict[str, Any] | None = None, **spec: Any) -> Facts:
    said = {"stable": STABLE, "digest": OLD, **(status or {})}
    made = adapter(status=said, **{"rollout": TRY_ONE, **spec})
    return facts(*engines, adapter=made)


def contents(found: Facts) -> list[str]:
    course = found.course(NOW)
    return [course.content_for(view.uid) for view in found.engines]


def test_one_engine_gets_the_new_content_and_the_others_the_old() -> None:
    found = updating(old_on("a"), old_on("b"), engine("c"))
    assert contents(found) == [FINGERPRINT, "fp-0", "fp-0"]
    found = updating(old_on("a"), new_on("b"), old_on("c", staged()))
    assert contents(found) == ["fp-0", FINGERPRINT, "fp-0"]
    assert found.course(NOW).main == "fp-0"


def test_a_silent_engine_that_serves_the_new_content_is_not_replaced_by_another() -> None:
    found = updating(old_on("a"), new_on("b"), old_on("c"))
    silent = [
        found.engines[0],
        engine("b", *new_on("b").loaded("team-a/sql"), staged(), problem="x"),
    ]
    assert contents(updating(*silent, old_on("c"))) == ["fp-0", FINGERPRINT, "fp-0"]


def test_without_a_canary_or_after_it_everybody_gets_the_new_content() -> None:
    assert contents(updating(old_on("a"), old_on("b"), rollout={})) == [FINGERPRINT] * 2
    over = {"canary": trial(promoted=True).to_api()}
    assert contents(updating(new_on("a"), old_on("b"), status=over)) == [FINGERPRINT] * 2
    other = {"canary": trial(promoted=True, fingerprint="fp-9").to_api()}
    assert contents(updating(new_on("a"), old_on("b"), status=other)) == [FINGERPRINT, "fp-0"]


def test_a_first_revision_and_a_named_one_are_not_tried() -> None:
    made = adapter(rollout=TRY_ONE)
    assert contents(facts(engine("a"), engine("b"), adapter=made)) == [FINGERPRINT] * 2
    named = updating(old_on("a"), old_on("b"), revision=DIGEST)
    assert contents(named) == [FINGERPRINT] * 2


def test_nothing_is_tried_where_no_engine_has_anything_else() -> None:
    assert contents(updating(engine("a"), engine("b"))) == [FINGERPRINT] * 2


def test_the_same_content_from_another_address_is_not_tried() -> None:
    views = [old_on("a"), old_on("b")]
    known = [replace(view, digests={FINGERPRINT: OLD}) for view in views]
    assert contents(updating(*known)) == [FINGERPRINT] * 2


def test_what_is_stable_is_told_by_the_engines_when_no_status_says() -> None:
    found = updating(old_on("a"), old_on("b"), new_on("c"), status={"stable": None})
    assert found.course(NOW).stable == Revision(digest=OLD, fingerprint="fp-0")
    assert contents(found) == ["fp-0", "fp-0", FINGERPRINT]


def gave_up(found: Facts) -> Course:
    course = found.course(NOW)
    assert course.given_up is not None
    assert course.main == "fp-0"
    assert contents(found) == ["fp-0"] * len(found.engines)
    return course


def test_failed_requests_take_it_back_everywhere() -> None:
    status = {"canary": trial().to_api()}
    given_up = gave_up(updating(new_on("a", requests=20, errors=3), old_on("b"), status=status))
    assert given_up.given_up is not None
    assert (given_up.given_up.reason, given_up.given_up.digest) == ("ErrorRate", DIGEST)
    assert given_up.given_up.generation == 1


def test_it_is_not_tried_again_before_the_spec_or_the_content_changes() -> None:
    note = {"fingerprint": FINGERPRINT, "generation": 1, "reason": "ErrorRate", "digest": DIGEST}
    gave_up(updating(old_on("a"), old_on("b"), status={"rolledBack": note}))
    for changed in ({"fingerprint": "fp-9"}, {"generation": 0}):
        found = updating(old_on("a"), old_on("b"), status={"rolledBack": {**note, **changed}})
        assert contents(found) == [FINGERPRINT, "fp-0"]


def test_three_refusals_or_a_final_one_after_others_moved_end_an_update() -> None:
    error = EngineRejected("no kernel for this")
    found = updating(old_on("a", staged()), old_on("b"), rollout={})
    found.failures["uid-a"] = (2, error)
    assert found.course(NOW).given_up is None
    found.failures["uid-a"] = (3, error)
    assert gave_up(found).given_up.message.endswith("engine a: no kernel for this")  # type: ignore[union-attr]

    for moved in (False, True):
        found = updating(new_on("a") if moved else old_on("a"), old_on("b"), rollout={})
        found.refusals["uid-b"] = found.troubles["uid-b"] = error
        assert (found.course(NOW).given_up is not None) == moved


def test_nothing_is_given_up_for_what_is_staged_nowhere() -> None:
    status = {"canary": trial().to_api()}
    lost = engine("a", loaded(DIGEST, requests=20, errors=20), staged())
    found = updating(lost, status=status)
    assert found.course(NOW).given_up is None


def test_the_status_tells_of_a_trial() -> None:
    found = updating(new_on("a", requests=4), old_on("b"), old_on("c"))
    found.verdicts["uid-a"] = Verdict(size_bytes=1, rank=8)
    status = report(found, NOW).status
    assert status.canary is not None
    assert (status.canary.engines, status.canary.requests) == (1, 4)
    assert status.canary.since == NOW
    assert [each.canary for each in status.engines] == [True, False, False]
    assert (status.digest, status.stable) == (OLD, Revision.model_validate(STABLE))
    assert (status.ready_engines, status.updated_engines) == (3, 1)
    ready = next(each for each in status.conditions if each.type == "Ready")
    assert (ready.status, ready.reason) == ("False", "Canary")
    assert ready.message == "1 of 3 engines try sha256:aaaaaaaaaaaa since 00:00:00 UTC"


def test_an_adapter_that_sleeps_tries_nothing_and_is_as_ready_as_others_that_sleep() -> None:
    for before in (None, trial()):
        status = {"stable": STABLE, "digest": OLD}
        if before is not None:
            status["canary"] = before.to_api()
        made = adapter(status=status, rollout=TRY_ONE, placement={"policy": "OnDemand"})
        staged_only = engine("a", staged(OLD, "fp-0"))
        found = facts(staged_only, placed=Placed(), adapter=made)
        found.verdicts["uid-a"] = Verdict(size_bytes=1, rank=8)
        said = report(found, NOW).status
        assert said.canary == before, "a trial that has begun goes on when somebody asks again"
        ready = next(each for each in said.conditions if each.type == "Ready")
        assert (ready.status, ready.reason) == ("True", "Ready")
        assert said.digest == OLD
        found.placed = Placed(("a",), 1)
        assert contents(found) == [FINGERPRINT], "whoever asks first tries it"


def test_the_status_forgets_a_trial_when_everybody_followed() -> None:
    status = {"canary": trial(promoted=True).to_api()}
    views = [new_on("a"), new_on("b")]
    found = report(updating(*views, status=status), NOW).status
    assert found.canary is None
    assert found.stable == NEW
    assert found.history == [OLD]
    half = report(updating(new_on("a"), old_on("b"), status=status), NOW).status
    assert half.canary is not None
    assert half.stable == Revision.model_validate(STABLE)


def test_a_plan_that_gives_no_engine_settles_nothing() -> None:
    found = facts(old_on("a"), placed=Placed(), adapter=adapter(status={"stable": STABLE}))
    status = report(found, NOW).status
    assert status.stable == Revision.model_validate(STABLE)


class Asked(Link):
    """A connection that counts how often the inventory was asked for."""

    times = 0

    async def refresh(self) -> None:
        self.times += 1


async def test_every_engine_that_tries_a_revision_is_asked_for_its_figures_and_no_other() -> None:
    """Also one that the status does not name: it has room for a hundred."""
    views = [new_on("a"), old_on("b"), new_on("c")]
    links = {view.uid: Asked(view) for view in views}
    named = [{"podName": "c", "canary": True}, {"podName": "b"}]
    status = {"stable": STABLE, "canary": trial().to_api(), "engines": named}
    for over in (False, True):
        status["canary"] = trial(promoted=over).to_api()
        world = World({"team-a": [v.pod for v in views]}, {"team-a": [pool()]}, {}, {}, ())
        fleet: Any = KnownFleet(world, Links(links))
        for view in views:
            assert view.inventory is not None
            fleet.holders.note(view.uid, view.inventory)
        await observe(Facts(adapter(status=status, rollout=TRY_ONE), "2026-01-01"), fleet)
        assert [link.times for link in links.values()] == [1, 0, 1], "not after its end"
