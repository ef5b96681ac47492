"""What a pass looks at in a large pool: the engines that concern its adapter, and one of each profile."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from known_fleet import KnownFleet, Link, Links
from lorafleet.errors import InvalidAdapter, SourceUnavailable
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from lorafleet_operator.facts import Facts
from lorafleet_operator.memory import Verdict
from lorafleet_operator.observe import observe
from lorafleet_operator.place import place
from lorafleet_operator.world import World
from operator_builders import adapter, engine, facts, loaded, pool, staged

if TYPE_CHECKING:
    from lorafleet_operator.world import EngineView

FITS = Verdict(size_bytes=2 << 20, rank=8)
NO_MODULES = InvalidAdapter("adapter team-a/sql: 3 of 3 modules do not exist in the engine")


class Fleet(KnownFleet):
    """The fleet, with the first steps of a pass."""

    @classmethod
    def of(cls, *views: EngineView) -> Fleet:
        world = World({"team-a": [v.pod for v in views]}, {"team-a": [pool()]}, {}, {}, set())
        return cls(world, Links({view.uid: Link(view) for view in views}))

    async def see(self, **spec: Any) -> Facts:
        """A pass up to the checks of the content."""
        found = Facts(adapter(**spec), "2026-01-01T00:00:00Z")
        await observe(found, self)  # type: ignore[arg-type]
        return found

    def choose(self, found: Facts, verdicts: dict[str, Verdict]) -> list[str]:
        """The rest of the pass up to its place; `verdicts` by the profile's dtype."""
        for view in found.engines:
            if view.member and view.profile is not None:
                verdict = found.verdicts[view.uid] = verdicts[view.profile.dtype]
                if verdict.error is not None:
                    found.refusals[view.uid] = verdict.error
        place(found, self)  # type: ignore[arg-type]
        return sorted(view.pod.name for view in found.engines)


def fleet(count: int, halves: int = 0, **more: EngineView) -> Fleet:
    """`count` engines of bfloat16, of which the first `halves` are float16 instead."""
    views = []
    shared = engine("e-000").profile
    assert shared is not None
    other = replace(shared, dtype="float16")
    for number in range(count):
        name = f"e-{number:03}"
        made = more.get(name.replace("-", "_")) or engine(name)
        views.append(replace(made, profile=other if number < halves else shared))
    return Fleet.of(*views)


def spread(replicas: int) -> dict[str, Any]:
    return {"placement": {"policy": "Spread", "replicas": replicas}}


async def test_a_new_adapter_sees_one_engine_of_each_profile_and_then_those_that_it_gets() -> None:
    made = fleet(60, halves=20)
    found = await made.see(**spread(3))
    assert sorted(v.profile.dtype for v in found.engines if v.profile) == ["bfloat16", "float16"]
    seen = made.choose(found, {"bfloat16": FITS, "float16": FITS})
    assert seen == ["e-000", "e-001", "e-002"]
    assert {view.uid for view in found.engines} <= found.verdicts.keys()


async def test_what_one_engine_cannot_take_is_offered_to_none_of_its_profile() -> None:
    made = fleet(60, halves=20)
    found = await made.see(**spread(2))
    verdicts = {"bfloat16": FITS, "float16": Verdict(error=NO_MODULES)}
    assert made.choose(found, verdicts) == ["e-020", "e-021"]
    assert found.rejection is None


async def test_an_adapter_for_every_engine_hears_the_refusal_of_each_that_cannot_take_it() -> None:
    made = fleet(6, halves=2)
    found = await made.see()
    made.choose(found, {"bfloat16": FITS, "float16": Verdict(error=NO_MODULES)})
    assert found.placed is not None
    assert found.placed.pods == tuple(f"e-00{number}" for number in range(6))
    refusing = {found.view(uid).pod.name for uid in found.refusals}
    assert refusing == {"e-000", "e-001"}


@pytest.mark.parametrize(
    ("neighbour", "out"),
    [
        (engine("a", staged(), forwards=True), False),
        (engine("a", staged()), True),  # it passes nothing on
        (engine("a", forwards=True), True),
    ],
)
def test_while_a_source_is_away_content_comes_from_an_engine_that_passes_it_on(
    neighbour: EngineView, out: bool
) -> None:
    found = facts(neighbour, engine("b", forwards=True))
    assert not found.out_of_reach
    found.unread = True
    assert not found.out_of_reach, "it may answer any moment"
    found.source_error = SourceUnavailable("no answer")
    assert found.out_of_reach is out


async def test_engines_that_have_it_or_hold_its_content_or_have_refused_it_are_seen() -> None:
    has = engine("e-050", loaded())
    old = pb.StagedRevision(digest="sha256:old", fingerprint="fp-0", size_bytes=1, rank=8)
    holds = engine("e-051", old)
    made = fleet(60, e_050=has, e_051=holds)
    uid = "uid-e-052"
    made.memory.keep_refusal("uid-sql", f"{uid}/i1", 1, "fp-1", NO_MODULES)
    found = await made.see(**spread(1), status={"history": ["sha256:old"]})
    names = {view.pod.name for view in found.engines}
    assert {"e-050", "e-051", "e-052"} <= names
    assert len(names) <= 4
    assert made.choose(found, {"bfloat16": FITS}) == ["e-050", "e-051"]
    assert found.placed is not None
    assert found.placed.pods == ("e-050",)
