"""Rollout decisions as a table, and what holds for every fleet."""

from __future__ import annotations

from dataclasses import replace

import pytest
from any_holdings import any_holdings, any_loaded
from hypothesis import given
from hypothesis import strategies as st
from lorafleet_operator import rollout
from lorafleet_operator.rollout import Holding, Loaded, Wanted

OLD, NEW, NAME = "sha256:old", "sha256:new", "team-a/sql"


def serving(digest: str, **changes: object) -> Loaded:
    return replace(Loaded(digest, NAME, published=True), **changes)  # type: ignore[arg-type]


def beside(digest: str, **changes: object) -> Loaded:
    return replace(Loaded(digest, NAME), **changes)  # type: ignore[arg-type]


def engine(name: str, digest: str = "", *loaded: Loaded, **changes: object) -> Holding:
    return replace(Holding(name, digest=digest, loaded=loaded), **changes)  # type: ignore[arg-type]


def decide(*holdings: Holding, **changes: object) -> dict[str, object]:
    """Return the decisions that are not empty."""
    wanted = Wanted(NAME, holdings=holdings, **changes)  # type: ignore[arg-type]
    decisions = {
        "stage": rollout.to_stage(wanted),
        "load": rollout.to_load(wanted),
        "publish": rollout.to_publish(wanted),
        "retire": rollout.to_retire(wanted),
        "roll back": [name for name, _ in rollout.to_roll_back(wanted)],
    }
    return {step: found for step, found in decisions.items() if found}


TABLE = {
    "a new engine is sent the content": ([engine("a")], {"stage": ["a"]}),
    "a staged revision is loaded": ([engine("a", NEW)], {"load": ["a"]}),
    "a first revision is published where it is loaded, without waiting for other engines": (
        [engine("a", NEW, beside(NEW)), engine("b")],
        {"stage": ["b"], "publish": ["a"]},
    ),
    "a served revision needs nothing": ([engine("a", NEW, serving(NEW))], {}),
    "no name moves while another engine has yet to load the new revision": (
        [engine("a", NEW, serving(OLD), beside(NEW)), engine("b", NEW, serving(OLD))],
        {"load": ["b"]},
    ),
    "no name moves while an engine has the new revision, but refused it or has yet to prove it": (
        [
            engine("a", NEW, serving(OLD), beside(NEW)),
            engine("b", NEW, serving(OLD), beside(NEW, draining=True)),
            engine("c", NEW, serving(OLD), beside(NEW, unproved=True)),
        ],
        {"load": ["b", "c"]},
    ),
    "all names move once all engines have loaded the new revision": (
        [
            engine("a", NEW, serving(OLD), beside(NEW)),
            engine("b", NEW, serving(OLD), beside(NEW)),
        ],
        {"publish": ["a", "b"]},
    ),
    "an engine without contact holds the names back": (
        [
            engine("a", NEW, serving(OLD), beside(NEW)),
            engine("b", NEW, serving(OLD), takes_orders=False),
        ],
        {},
    ),
    "an engine that is late follows alone when the revision is published elsewhere": (
        [engine("a", NEW, serving(NEW)), engine("b", NEW, serving(OLD), beside(NEW))],
        {"publish": ["b"]},
    ),
    "a refusal elsewhere takes the new revision out of its slot, and no name moves": (
        [
            engine("a", NEW, serving(OLD), beside(NEW)),
            engine("b", NEW, serving(OLD), refused=True),
        ],
        {"roll back": ["a"]},
    ),
    "what one engine refuses and no name may mean is not loaded beside what others serve again": (
        [engine("a", NEW, serving(OLD)), engine("b", NEW, serving(OLD), refused=True)],
        {},
    ),
    "nor sent to them again": (
        [engine("a", "", serving(OLD)), engine("b", NEW, serving(OLD), refused=True)],
        {},
    ),
    "a refusal does not hold up others once the revision is served somewhere": (
        [
            engine("a", NEW, serving(NEW)),
            engine("b", NEW, serving(OLD), refused=True),
            engine("c", NEW, serving(OLD)),
        ],
        {"load": ["c"]},
    ),
    "a refusal at the staging leaves everything": (
        [engine("a", "", serving(OLD), refused=True)],
        {},
    ),
    "an engine that is restarting is sent the content but not asked to load": (
        [engine("a", takes_orders=False), engine("b", NEW, takes_orders=False)],
        {"stage": ["a"]},
    ),
    "an engine that left the plan keeps serving until the others do": (
        [engine("a", NEW, serving(NEW), desired=False), engine("b", NEW)],
        {"load": ["b"]},
    ),
    "an engine that left the plan lets go when the others serve": (
        [engine("a", NEW, serving(NEW), desired=False), engine("b", NEW, serving(NEW))],
        {"retire": [("a", NAME)]},
    ),
    "an adapter without a place keeps what serves": (
        [engine("a", NEW, serving(NEW), desired=False)],
        {},
    ),
    "an old served name goes after the new one serves": (
        [engine("a", NEW, serving(NEW), serving(NEW, served_name="old-name"))],
        {"retire": [("a", "old-name")]},
    ),
    "a changed served name is loaded and published before the old one goes": (
        [engine("a", NEW, serving(NEW, served_name="old-name"))],
        {"load": ["a"]},
    ),
    "a revision that only drains is left to the sidecar": (
        [engine("a", NEW, serving(NEW), beside(OLD, served_name="old-name", draining=True))],
        {},
    ),
    "another loader loads again": (
        [engine("a", NEW, serving(NEW, loader="device"))],
        {"load": ["a"]},
    ),
    "an engine without the plugin has its own loader": (
        [engine("a", NEW, serving(NEW, loader="stock"))],
        {},
    ),
    "a pin that is no longer wanted is taken off": (
        [engine("a", NEW, serving(NEW, residency="gpu"))],
        {"publish": ["a"]},
    ),
    "engines of two dtypes each load their own digest": (
        [engine("a", NEW), engine("b", "sha256:new-fp16")],
        {"load": ["a", "b"]},
    ),
}


@pytest.mark.parametrize("sentence", TABLE)
def test_decisions(sentence: str) -> None:
    holdings, expected = TABLE[sentence]
    assert decide(*holdings) == expected


def test_an_adapter_that_lost_its_name_lets_go_everywhere_at_once() -> None:
    wanted = Wanted(NAME, holdings=(engine("a", NEW, serving(NEW), desired=False),))
    assert rollout.to_retire(wanted, lost_name=True) == [("a", NAME)]
    assert rollout.to_retire(wanted, lost_name=True, kept_names={NAME}) == []


def test_names_that_are_another_s_by_now_are_handed_over_before_anything_is_loaded() -> None:
    before = replace(serving(NEW), served_name="team-a/before")
    draining = replace(serving(OLD), served_name="team-a/before", draining=True)
    silent = replace(engine("c", NEW, before), takes_orders=False)
    wanted = Wanted(
        NAME, holdings=(engine("a", NEW, before), engine("b", NEW, serving(NEW), draining), silent)
    )
    assert rollout.to_hand_over(wanted, {"team-a/before"}) == [("a", "team-a/before")]
    assert rollout.to_hand_over(wanted, {"team-a/other"}) == []


def test_an_adapter_that_gave_its_place_away_lets_go_once_it_serves_elsewhere_or_has_nowhere_to_go() -> (
    None
):
    given = engine("a", NEW, serving(NEW), desired=False, displaced=True)
    assert rollout.to_retire(Wanted(NAME, holdings=(given,))) == [("a", NAME)]
    for elsewhere, gone in (
        (engine("b", NEW), []),
        (engine("b", NEW, serving(NEW)), [("a", NAME)]),
    ):
        assert rollout.to_retire(Wanted(NAME, holdings=(given, elsewhere))) == gone


def test_an_engine_without_contact_is_no_proof_of_readiness() -> None:
    wanted = Wanted(
        NAME,
        holdings=(
            engine("a", NEW, serving(NEW)),
            engine("b", NEW, serving(NEW), takes_orders=False),
        ),
    )
    assert rollout.ready(wanted) == 1


HOLDINGS = any_holdings(NEW, st.lists(any_loaded([OLD, NEW], [NAME, "other"]), max_size=2))


@given(HOLDINGS)
def test_no_decision_is_for_an_engine_that_cannot_take_it(holdings: tuple[Holding, ...]) -> None:
    wanted = Wanted(NAME, holdings=holdings)
    by_name = {holding.engine: holding for holding in holdings}
    for name in [*rollout.to_load(wanted), *rollout.to_publish(wanted)]:
        assert by_name[name].desired
        assert by_name[name].takes_orders
        assert by_name[name].digest
    for name, _ in rollout.to_retire(wanted):
        assert by_name[name].takes_orders


@given(HOLDINGS)
def test_while_an_old_revision_is_served_and_one_engine_refuses_no_name_moves(
    holdings: tuple[Holding, ...],
) -> None:
    refusing = Holding("z", digest=NEW, loaded=(serving(OLD),), refused=True)
    wanted = Wanted(NAME, holdings=(*holdings, refusing))
    proved = any(rollout.serves(wanted, holding) for holding in holdings)
    assert proved or not rollout.to_publish(wanted)


@given(HOLDINGS)
def test_an_engine_never_loads_and_publishes_in_one_decision(holdings: tuple[Holding, ...]) -> None:
    wanted = Wanted(NAME, holdings=holdings)
    assert not set(rollout.to_load(wanted)) & set(rollout.to_publish(wanted))


@given(HOLDINGS)
def test_following_the_decisions_ends_with_every_willing_engine_serving(
    holdings: tuple[Holding, ...],
) -> None:
    """Play obedient engines: within a few rounds nothing is left to do, and all serve."""
    holdings = tuple(replace(h, takes_orders=True, refused=False) for h in holdings)
    for _ in range(6):
        wanted = Wanted(NAME, holdings=holdings)
        holdings = tuple(_obey(wanted, holding) for holding in holdings)
    wanted = Wanted(NAME, holdings=holdings)
    assert rollout.ready(wanted) == len(wanted.desired())
    assert decide(*holdings) == {}


def _obey(wanted: Wanted, holding: Holding) -> Holding:
    loaded = list(holding.loaded)
    if holding.engine in rollout.to_load(wanted):
        loaded.append(beside(holding.digest))
    if holding.engine in rollout.to_publish(wanted):
        others = [entry for entry in loaded if entry.served_name != NAME]
        loaded = [*others, serving(holding.digest)]
    if holding.engine in dict(rollout.to_roll_back(wanted)):
        loaded = [entry for entry in loaded if entry.published or entry.served_name != NAME]
    gone = [name for engine_, name in rollout.to_retire(wanted) if engine_ == holding.engine]
    loaded = [entry for entry in loaded if entry.served_name not in gone]
    digest = NEW if holding.engine in rollout.to_stage(wanted) else holding.digest
    return replace(holding, loaded=tuple(loaded), digest=digest)


def test_an_engine_that_is_drained_keeps_the_wanted_revision_and_lets_go_of_others() -> None:
    stays = engine("e-1", NEW, serving(NEW))
    going = engine("e-0", NEW, serving(NEW), desired=False)
    assert decide(stays, going) == {"retire": [("e-0", NAME)]}
    assert decide(stays, replace(going, leaving=True)) == {}
    old = engine("e-0", "", serving(OLD), desired=False, leaving=True)
    assert decide(stays, old) == {"retire": [("e-0", NAME)]}
