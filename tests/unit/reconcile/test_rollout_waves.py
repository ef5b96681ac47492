"""Waves, engines that make room, and ways back: as a table, and for every fleet."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lorafleet_operator import rollout
from lorafleet_operator.rollout import Holding, Loaded, Wanted

OLD, NEW, NAME = "sha256:old", "sha256:new", "team-a/sql"


def serving(digest: str, **changes: Any) -> Loaded:
    return replace(Loaded(digest, NAME, published=True), **changes)


def beside(digest: str, **changes: Any) -> Loaded:
    return replace(Loaded(digest, NAME), **changes)


def engine(name: str, digest: str = "", *loaded: Loaded, **changes: Any) -> Holding:
    return replace(Holding(name, digest=digest, loaded=loaded), **changes)


def decide(*holdings: Holding, **changes: Any) -> dict[str, object]:
    """Return the decisions that are not empty."""
    wanted = Wanted(NAME, holdings=holdings, **changes)
    decisions = {
        "stage": rollout.to_stage(wanted),
        "load": rollout.to_load(wanted),
        "publish": rollout.to_publish(wanted),
        "make room": rollout.to_make_room(wanted),
        "roll back": [name for name, _ in rollout.to_roll_back(wanted)],
    }
    return {step: found for step, found in decisions.items() if found}


ONE = {"max_surge": 1}
ROOM = {"max_unavailable": 1}
STRICT = {"max_surge": 0, "max_unavailable": 1}
TABLE: dict[str, tuple[list[Holding], dict[str, int], dict[str, object]]] = {
    "one engine of the wave is sent the content": (
        [engine("b", "", serving(OLD)), engine("a", "", serving(OLD))],
        ONE,
        {"stage": ["a"]},
    ),
    "the one that has it already goes first": (
        [engine("a", "", serving(OLD)), engine("b", NEW, serving(OLD))],
        ONE,
        {"load": ["b"]},
    ),
    "a name moves once the wave has loaded, whatever the others have": (
        [engine("a", NEW, serving(OLD), beside(NEW)), engine("b", "", serving(OLD))],
        ONE,
        {"publish": ["a"]},
    ),
    "the next one waits until the old revision has drained": (
        [
            engine("a", NEW, serving(NEW), beside(OLD, draining=True)),
            engine("b", "", serving(OLD)),
        ],
        ONE,
        {},
    ),
    "and goes on after it": (
        [engine("a", NEW, serving(NEW)), engine("b", "", serving(OLD))],
        ONE,
        {"stage": ["b"]},
    ),
    "draining holds nobody up when all may hold two": (
        [
            engine("a", NEW, serving(NEW), beside(OLD, draining=True)),
            engine("b", "", serving(OLD)),
        ],
        {},
        {"stage": ["b"]},
    ),
    "an engine with nothing to replace is in no wave": (
        [engine("a", "", serving(OLD)), engine("b", "")],
        ONE,
        {"stage": ["a", "b"]},
    ),
    "a full engine may not unload when none may be without": (
        [engine("a", "", serving(OLD), full=True)],
        {},
        {"stage": ["a"]},
    ),
    "a full engine unloads first when one may be without": (
        [engine("a", "", serving(OLD), full=True), engine("b", "", serving(OLD), full=True)],
        ROOM,
        {"make room": ["a"]},
    ),
    "not when that would not make room enough": (
        [engine("a", "", serving(OLD), full=True, fits=False)],
        ROOM,
        {},
    ),
    "not while another one is without": (
        [engine("a", ""), engine("b", "", serving(OLD), full=True)],
        ROOM,
        {"stage": ["a"]},
    ),
    "not while another one is down": (
        [
            engine("a", NEW, serving(NEW)),
            engine("b", "", takes_orders=False),
            engine("c", "", serving(OLD), full=True),
        ],
        ROOM,
        {"stage": ["b"]},
    ),
    "the one that made room serves alone at first": (
        [engine("a", NEW, beside(NEW)), engine("b", "", serving(OLD), full=True)],
        ROOM,
        {"publish": ["a"]},
    ),
    "before the new revision is served somewhere only one engine risks it": (
        [engine(name, "", serving(OLD), full=True) for name in "abc"],
        {"max_unavailable": 3},
        {"make room": ["a"]},
    ),
    "then as many as may be without": (
        [engine("a", NEW, serving(NEW))]
        + [engine(name, "", serving(OLD), full=True) for name in "bcd"],
        {"max_unavailable": 2},
        {"make room": ["b", "c"]},
    ),
    "without any surge everybody unloads first": (
        [engine("a", NEW, serving(OLD)), engine("b", "", serving(OLD))],
        STRICT,
        {"make room": ["a"]},
    ),
    "an engine that is down holds nobody up when one may be without": (
        [
            engine("a", NEW, serving(OLD), beside(NEW)),
            engine("b", NEW, takes_orders=False),
        ],
        ROOM,
        {"publish": ["a"]},
    ),
    "going back needs no proof": (
        [
            engine("a", OLD, serving(NEW), beside(OLD), proved=True),
            engine("b", OLD, serving(NEW), proved=True),
        ],
        {},
        {"load": ["b"], "publish": ["a"]},
    ),
    "what a trial left loaded is taken out where it is not to be served": (
        [
            engine("a", NEW, serving(NEW)),
            engine("b", OLD, serving(OLD), beside(NEW), proved=True),
        ],
        {},
        {"roll back": ["b"]},
    ),
    "an engine that keeps other revisions than it should is told again": (
        [engine("a", NEW, serving(NEW), keeps_others=True)],
        {},
        {"publish": ["a"]},
    ),
}


@pytest.mark.parametrize("sentence", TABLE)
def test_decisions_of_an_update(sentence: str) -> None:
    holdings, limits, expected = TABLE[sentence]
    assert decide(*holdings, **limits) == expected


FLEETS = st.integers(1, 5).flatmap(
    lambda size: st.tuples(
        st.lists(
            st.tuples(
                st.booleans(),  # has room for two
                st.booleans(),  # has the new revision staged from before
                st.sampled_from(["old", "new", "both", "nothing"]),
                st.booleans(),  # is to serve the old one: another tries the new one
            ),
            min_size=size,
            max_size=size,
        ),
        st.integers(0, size),
        st.integers(0, size),
    )
)


@given(FLEETS)
def test_every_update_ends_and_keeps_its_limits_on_the_way(
    drawn: tuple[list[tuple[bool, bool, str, bool]], int, int],
) -> None:
    """Play engines that obey, from any state: none is without a revision but as many as may be."""
    engines, unavailable, surge = drawn
    roomy = unavailable > 0 or all(room for room, *_ in engines)
    if not unavailable and not surge:
        surge = 1
    state = [_begin(f"e{n}", *each) for n, each in enumerate(engines)]
    limits = {"max_unavailable": unavailable, "max_surge": surge}
    without = sum(not _served(each) for each in state)
    for _ in range(6 * len(state) + 6):
        wanted = Wanted(NAME, holdings=tuple(state), **limits)  # type: ignore[arg-type]
        doubled = sum(len(each.loaded) > 1 for each in state)
        state = [_obey(wanted, each, engines[n][0]) for n, each in enumerate(state)]
        # Those that were without any at first come to serve, and count until they do.
        assert sum(not _served(each) for each in state) <= max(unavailable, without)
        without = min(without, sum(not _served(each) for each in state))
        assert sum(len(each.loaded) > 1 for each in state) <= max(surge, doubled)
    wanted = Wanted(NAME, holdings=tuple(state), **limits)  # type: ignore[arg-type]
    if roomy:
        assert rollout.ready(wanted) == len(state)
        assert decide(*state, **limits) == {}


def _begin(name: str, room: bool, staged: bool, has: str, stays: bool) -> Holding:
    target = OLD if stays else NEW
    loaded = {
        "old": (serving(OLD),),
        "new": (serving(NEW),),
        "both": (serving(OLD), beside(NEW)),
        "nothing": (),
    }[has]
    known = staged or any(entry.digest == target for entry in loaded)
    return engine(name, target if known else "", *loaded, proved=stays)


def _served(holding: Holding) -> bool:
    return any(entry.published for entry in holding.loaded)


def _obey(wanted: Wanted, holding: Holding, room: bool) -> Holding:
    """Return the engine after one pass; without room it takes the new revision only when it is empty."""
    target, name = (OLD if holding.proved else NEW), holding.engine
    loaded = list(holding.loaded)
    if name in rollout.to_stage(wanted):
        if room or not _served(holding):
            return replace(holding, digest=target, full=False)
        return replace(holding, full=True)
    if name in rollout.to_load(wanted):
        loaded.append(beside(target))
    elif name in rollout.to_publish(wanted):
        loaded = [serving(target)]
    elif name in dict(rollout.to_roll_back(wanted)):
        loaded = [entry for entry in loaded if entry.published]
    elif name in rollout.to_make_room(wanted):
        loaded = []
    return replace(holding, loaded=tuple(loaded), full=holding.full and bool(loaded))


@given(FLEETS)
def test_a_refused_revision_never_becomes_the_only_one(
    drawn: tuple[list[tuple[bool, bool, str, bool]], int, int],
) -> None:
    """Every engine refuses the new revision at its load: what is served stays served."""
    engines, unavailable, surge = drawn
    state = [
        replace(_begin(f"e{n}", room, staged, "old", False), full=not room)
        for n, (room, staged, _, _) in enumerate(engines)
    ]
    limits = {"max_unavailable": unavailable, "max_surge": max(surge, int(not unavailable))}
    for _ in range(3 * len(state) + 3):
        wanted = Wanted(NAME, holdings=tuple(state), **limits)  # type: ignore[arg-type]
        assert not rollout.to_publish(wanted)
        state = [
            replace(each, refused=True)
            if each.engine in rollout.to_load(wanted)
            else _obey(wanted, each, engines[n][0])
            for n, each in enumerate(state)
        ]
    assert sum(not _served(each) for each in state) <= min(1, unavailable)
