"""Whom news of one engine wakes: those that it concerns, not the whole pool."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from known_fleet import Sleeper
from kubernetes.aio.client import ApiClient
from lorafleet_operator.fleet import Fleet, pool_loop
from lorafleet_operator.placement import EngineSnapshot
from lorafleet_operator.settings import OperatorSettings
from lorafleet_operator.world import KnownAdapter, World
from operator_builders import BASE, adapter, known, pod, pool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

POOL = "team-a/pool"
SPREAD = {"placement": {"policy": "Spread"}}
READ = {"sizeBytes": 2 << 20, "rank": 8}


def placed(name: str, *engines: str, **spec: Any) -> Any:
    status = {**READ, "engines": [{"podName": engine} for engine in engines]}
    return KnownAdapter.of(adapter(name, status, **spec), "2026-01-01T00:00:00Z")


@asynccontextmanager
async def fleet_of(*adapters: Any) -> AsyncIterator[Fleet]:
    """A fleet of three engines, of which e-2 has just failed, with its plan made."""
    pods = [pod(f"e-{number}") for number in range(3)]
    here = {"team-a/pool": list(adapters)}
    world = World({"team-a": pods}, {"team-a": [pool()]}, here, {}, set())
    async with ApiClient() as api:
        fleet = Fleet(OperatorSettings(), world, api)
        planner = fleet.planner(POOL)
        planner.members = {each.name: each for each in pods}
        for each in pods:
            room = 64 << 20
            planner.plan.set_engine(
                EngineSnapshot(
                    each.name,
                    base_models=(BASE,),
                    arena_limit_bytes=room,
                    arena_largest_free_bytes=room,
                )
            )
        planner.look_at_adapters(adapters)
        planner.plan.settle()
        yield fleet
        await fleet.secrets.close()
        await fleet.links.close()


async def woken(fleet: Fleet, names: list[str], news: Any) -> set[str]:
    """Return which of the loops `news()` wakes."""
    sleepers = {name: Sleeper() for name in names}
    for name, sleeper in sleepers.items():
        fleet.wakeups.add(name, sleeper)
    news()
    for name, sleeper in sleepers.items():
        fleet.wakeups.remove(name, sleeper)
    return {name for name, sleeper in sleepers.items() if sleeper.woken.is_set()}


async def test_news_of_an_engine_wakes_who_is_there_who_wants_every_engine_and_who_has_too_few() -> (
    None
):
    adapters = [
        placed("there", "e-0", **SPREAD),
        placed("elsewhere", "e-1", **SPREAD),
        placed("everywhere", "e-0", "e-1", "e-2"),
        placed("short", "e-1", placement={"policy": "Spread", "replicas": 5}),
        known("unread", **SPREAD),
    ]
    names = [each.key for each in adapters] + [pool_loop(POOL)]
    async with fleet_of(*adapters) as fleet:
        assert fleet.planner(POOL).plan.entries["team-a/there"].chosen.keys() == {"e-0"}
        found = await woken(fleet, names, lambda: fleet.wake_beside(POOL, "e-0"))
        assert set(names) - found == {"team-a/elsewhere"}


async def test_a_pod_event_that_says_nothing_new_wakes_nobody() -> None:
    there = placed("there", "e-0", **SPREAD)
    async with fleet_of(there) as fleet:
        names = [there.key, pool_loop(POOL)]

        def event(**changes: Any) -> Any:
            return lambda: fleet.pod_changed(replace(pod("e-0"), **changes), gone=False)

        assert await woken(fleet, names, event()) == set(names)
        assert await woken(fleet, names, event()) == set()
        assert await woken(fleet, names, event(node="n-1")) == set(names)
        relabelled = event(node="n-1", labels=(("app", "other"),))
        assert await woken(fleet, names, relabelled) == set(names), "it leaves the pool"
