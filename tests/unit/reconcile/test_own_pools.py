"""What an operator does for pools that are its own, and does not for those of others."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from known_fleet import Sleeper
from kubernetes.aio.client import ApiClient
from lorafleet_operator.cluster.leases import Leases
from lorafleet_operator.fair import Turn
from lorafleet_operator.fleet import Fleet, pool_loop
from lorafleet_operator.gate import gated, pool_of_adapter, pool_of_pool
from lorafleet_operator.lease import Me, shard_of
from lorafleet_operator.pool_pass import moved
from lorafleet_operator.rounds import Outcome
from lorafleet_operator.settings import OperatorSettings
from lorafleet_operator.tenure import Tenure
from lorafleet_operator.term import Term, TermOver, check
from lorafleet_operator.world import KnownAdapter, World
from operator_builders import adapter, pod, pool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

OURS, THEIRS = "team-a/pool", "team-a/other"
SHARDS = 2
IDLE = Outcome(well=True)


def body(kind: str, name: str, pool_name: str = "pool", **reference: str) -> dict[str, Any]:
    metadata = {"uid": name, "name": name, "namespace": "team-a", "resourceVersion": "1"}
    return {
        "kind": kind,
        "metadata": metadata,
        "spec": {"poolRef": {"name": pool_name, **reference}},
    }


@asynccontextmanager
async def fleet() -> AsyncIterator[tuple[Fleet, dict[int, Term]]]:
    """A fleet of two pools with an engine each; the lease of the first one's shard is held."""
    assert shard_of(OURS, SHARDS) != shard_of(THEIRS, SHARDS)
    pods = [pod("e-0"), replace(pod("e-1"), uid="uid-e-1", labels=(("app", "other"),))]
    other = pool(selector={"matchLabels": {"app": "other"}})
    other = other.model_copy(
        update={"metadata": other.metadata.model_copy(update={"name": "other"})}
    )
    adapters = {OURS: [known("a", "pool")], THEIRS: [known("b", "other")]}
    living = {"a", "b"}
    world = World({"team-a": pods}, {"team-a": [pool(), other]}, adapters, {}, living)
    async with ApiClient() as api:
        made = Fleet(OperatorSettings(), world, api)
        leases = Leases("operators", "lorafleet", 1.0)
        made.tenure = Tenure(leases, Me("me", SHARDS, 15), made.shards_changed)
        terms = made.tenure._candidate.terms
        terms[shard_of(OURS, SHARDS)] = Term()
        yield made, terms
        await leases.close()
        await made.secrets.close()
        await made.links.close()


def known(name: str, pool_name: str, **status: Any) -> KnownAdapter:
    made = adapter(name, status or None, poolRef={"name": pool_name})
    return KnownAdapter.of(made, "2026-01-01T00:00:00Z")


def test_an_adapter_is_its_pools_also_of_another_namespace() -> None:
    assert pool_of_adapter(body("LoRAAdapter", "a")) == "team-a/pool"
    assert pool_of_adapter(body("LoRAAdapter", "a", namespace="shared")) == "shared/pool"
    assert pool_of_pool(body("EnginePool", "pool")) == "team-a/pool"


async def test_a_pass_runs_within_the_term_of_its_pool_and_for_others_not_at_all() -> None:
    ran: list[str] = []

    async def one_pass(uid: str, place: Turn, fleet: Fleet) -> Outcome | None:
        assert check() > 0
        ran.append(uid)
        return None

    async with fleet() as (made, terms):
        run = gated(one_pass, pool_of_adapter, made)
        place = Turn(asyncio.Semaphore(1))
        made.bodies.keep(body("LoRAAdapter", "a"))
        made.bodies.keep(body("LoRAAdapter", "b", "other"))
        assert await run("a", place) is None
        assert await run("b", place) == IDLE
        assert await run("unknown", place) is None
        assert ran == ["a"]
        made.world.living.discard("b")  # type: ignore[attr-defined]
        assert await run("b", place) is None, "what is gone is forgotten, whoever's it was"
        assert made.bodies.get("b") is None
        terms[shard_of(OURS, SHARDS)].end()
        assert await run("a", place) == IDLE
        assert ran == ["a"]


async def test_a_pass_whose_term_ends_is_no_failure() -> None:
    async def one_pass(uid: str, place: Turn, fleet: Fleet) -> Outcome | None:
        term = fleet.term(OURS)
        assert term is not None
        term.end()
        try:
            check()
        except TermOver:
            await asyncio.sleep(0)
            raise
        raise AssertionError

    async with fleet() as (made, _):
        made.bodies.keep(body("LoRAAdapter", "a"))
        run = gated(one_pass, pool_of_adapter, made)
        assert await run("a", Turn(asyncio.Semaphore(1))) == IDLE


async def test_connections_are_opened_for_own_pools_and_closed_when_they_are_lost() -> None:
    async with fleet() as (made, terms):
        made.sync_links()
        assert [link.endpoint.pod for link in made.links.all()] == ["team-a/e-0"]
        mine, theirs = shard_of(OURS, SHARDS), shard_of(THEIRS, SHARDS)
        sleepers = {key: Sleeper() for key in (pool_loop(THEIRS), "team-a/a", "team-a/b")}
        for key, sleeper in sleepers.items():
            made.wakeups.add(key, sleeper)
        before = made.planner(OURS)
        terms[theirs] = terms.pop(mine)
        made.shards_changed({mine, theirs})
        assert [link.endpoint.pod for link in made.links.all()] == ["team-a/e-1"]
        woken = {key for key, sleeper in sleepers.items() if sleeper.woken.is_set()}
        assert woken == {pool_loop(THEIRS), "team-a/b"}
        assert made.planner(OURS) is not before, "what was planned is forgotten"


async def test_an_adapter_that_is_served_elsewhere_by_others_is_left_over_here() -> None:
    served = {"desiredEngines": 1, "readyEngines": 1, "observedGeneration": 1}
    async with fleet() as (made, terms):
        here = made.world.pool("team-a/pool")
        assert here is not None
        adapters: Any = made.world.adapters
        assert moved(here, made) == set(), "not before it is ready there"
        adapters[THEIRS] = [known("b", "other", **served)]
        assert moved(here, made) == {"team-a/b"}
        adapters[THEIRS] = [known("b", "other", **{**served, "observedGeneration": 0})]
        assert moved(here, made) == set(), "that was said before it was moved"
        adapters[THEIRS] = [known("b", "other", **served)]
        terms[shard_of(THEIRS, SHARDS)] = Term()
        assert moved(here, made) == set(), "its own pass unloads it"
