"""Policy OnDemand: whole passes against real sidecars whose engines have requests that wait."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from fake_engine import Behaviour
from known_fleet import Sleeper
from lorafleet_operator.observe import first_answers
from lorafleet_operator.world import KnownAdapter
from operator_builders import pool
from operator_rig import operator, ready
from sidecar_rig import Rig
from waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from lorafleet_operator.api.v1alpha1 import LoRAAdapter
    from operator_rig import Operator

ON_DEMAND = {"policy": "OnDemand"}


@asynccontextmanager
async def fleet(volume: Path, tmp_path: Path, engines: int = 1) -> AsyncIterator[Any]:
    """Rigs, and an operator that listens to them."""
    rigs = [Rig(volume / str(n), Behaviour(), pod_uid=f"u{n}") for n in range(engines)]
    try:
        for rig in rigs:
            await rig.__aenter__()
        async with operator(tmp_path, *rigs) as op:
            await first_answers(op.fleet, op.fleet.world.members(pool()))
            for rig in rigs:
                await until(lambda rig=rig: rig.engine.first_requests._listening)
                await until(lambda rig=rig: rig.sidecar.agent.board.watchers)
            yield op, *rigs
    finally:
        for rig in rigs:
            await rig.__aexit__()


async def asked(op: Operator, rig: Rig, made: LoRAAdapter) -> tuple[LoRAAdapter, str]:
    """Ask the engine for the adapter, run the passes that this wakes, return the answer.

    The request itself has the engine load it: a pass that looks meanwhile finds it unproved.
    """
    woken = Sleeper()
    op.fleet.wakeups.add(made.key, woken)
    request = asyncio.create_task(rig.answer(made.key))
    async with asyncio.timeout(60):
        await until(lambda: op.fleet.requested.pods(made.served_name))  # other news wakes it too
        while not request.done():
            woken.woken.clear()
            made = await op.apply(made)
            await until(lambda: request.done() or woken.woken.is_set())
        op.fleet.wakeups.remove(made.key, woken)
        return made, await request


async def test_it_is_on_no_engine_until_a_request_asks_and_then_on_that_one(
    volume: Path, tmp_path: Path
) -> None:
    async with fleet(volume, tmp_path, engines=2) as (op, a, b):
        sql = await op.apply(op.adapter("sql", placement=ON_DEMAND))
        asleep = "no engine has it; the first request to one brings it there"
        assert ready(sql) == ("True", "Ready", asleep)
        assert (sql.status.desired_engines, a.sidecar.store.revisions()) == (0, [])

        sql, text = await asked(op, a, sql)
        assert text == sql.status.digest[7:19]
        assert (sql.status.engines_summary, ready(sql)[0]) == ("1/1", "True")
        assert [e.pod_name for e in sql.status.engines] == ["engine-0"]
        assert b.engine.loads == []
        sql = await op.apply(sql)
        assert sql.status.engines_summary == "1/1"

        op.fleet.world.pools["team-a"][:] = [pool()]
        sql, text = await asked(op, b, sql)
        assert text == sql.status.digest[7:19]
        assert sql.status.engines_summary == "2/2"
        assert len(a.engine.loads) == len(b.engine.loads) == 1


async def test_a_name_of_no_adapter_is_not_found_without_any_pass(
    volume: Path, tmp_path: Path
) -> None:
    async with fleet(volume, tmp_path) as (op, a):
        await op.apply(op.adapter("sql", placement=ON_DEMAND))
        with pytest.raises(httpx.HTTPStatusError, match="404"):
            await a.answer("team-b/other")
        await until(lambda: not op.fleet.requested.pods("team-b/other"))


async def test_requests_that_wait_for_an_adapter_that_goes_are_told_so_at_once(
    volume: Path, tmp_path: Path
) -> None:
    async with fleet(volume, tmp_path, engines=2) as (op, a, b):
        for number, change in enumerate(("deleted", "renamed")):
            made = await op.apply(op.adapter(f"sql-{number}", placement=ON_DEMAND))
            waiting = [asyncio.create_task(rig.answer(made.key)) for rig in (a, b, b)]
            await until(lambda made=made: len(op.fleet.requested.pods(made.key)) == 2)
            if change == "deleted":
                known = KnownAdapter.of(made, "2026-01-01T00:00:00Z")
                op.fleet.adapter_came_or_went(replace(known, deleting=True), gone=False)
            else:
                spec = made.spec.model_copy(update={"served_name": "another"})
                await op.apply(made.model_copy(update={"spec": spec}))
            async with asyncio.timeout(10):  # they would wait for thirty seconds
                told = await asyncio.gather(*waiting, return_exceptions=True)
            assert ["404" in str(each) for each in told] == [True] * 3


async def test_requests_are_told_why_there_is_no_room(volume: Path, tmp_path: Path) -> None:
    async with fleet(volume, tmp_path) as (op, a):
        op.fleet.world.pools["team-a"][:] = [pool(maxAdaptersPerEngine=1)]
        always = await op.apply(op.adapter("always"))
        assert ready(always)[0] == "True"
        sql = await op.apply(op.adapter("sql", "d02-all-fp32", placement=ON_DEMAND))
        with pytest.raises(httpx.HTTPStatusError, match="503") as told:
            await asked(op, a, sql)
        line = told.value.response.json()["error"]["message"]
        assert (
            line
            == "team-a/sql is not served here: has 1 of 1 adapters; team-a/always, not on demand"
        )
        assert list(a.engine.served) == ["team-a/always"]


async def test_what_is_asked_for_takes_the_place_of_what_was_asked_for_before(
    volume: Path, tmp_path: Path
) -> None:
    async with fleet(volume, tmp_path) as (op, a):
        op.fleet.world.pools["team-a"][:] = [pool(maxAdaptersPerEngine=1)]
        one = await op.apply(op.adapter("one", placement=ON_DEMAND))
        two = await op.apply(op.adapter("two", "d02-all-fp32", placement=ON_DEMAND))
        one, _ = await asked(op, a, one)
        woken = Sleeper()
        op.fleet.wakeups.add(one.key, woken)
        two, text = await asked(op, a, two)
        assert woken.woken.is_set()
        assert text == two.status.digest[7:19]
        one = await op.apply(one)
        assert (one.status.engines_summary, list(a.engine.served)) == ("0/0", ["team-a/two"])
        always = await op.apply(op.adapter("always", "d06-rank-and-alpha-pattern"))
        assert ready(always)[:2] == ("True", "Ready")
        two = await op.apply(two)
        assert list(a.engine.served) == ["team-a/always"]


async def test_it_leaves_an_engine_where_nobody_asks_for_it_any_more(
    volume: Path, tmp_path: Path
) -> None:
    async with fleet(volume, tmp_path) as (op, a):
        sql = await op.apply(op.adapter("sql", placement={**ON_DEMAND, "idleSeconds": 3600}))
        sql, _ = await asked(op, a, sql)
        sql = await op.apply(sql)
        assert sql.status.engines_summary == "1/1"
        hasty = op.adapter("sql", placement={**ON_DEMAND, "idleSeconds": 1})
        sql = hasty.model_copy(update={"status": sql.status})
        (link,) = op.fleet.links.all()
        async with asyncio.timeout(60):
            while sql.status.engines_summary != "0/0":
                await asyncio.sleep(0.2)
                await link.refresh()
                sql = await op.apply(sql)
        assert (a.engine.served, a.engine.revisions) == ({}, {})
        assert ready(sql)[0] == "True"
        sql, text = await asked(op, a, sql)
        assert text == sql.status.digest[7:19]


async def test_residency_on_demand_waits_in_the_arenas_of_its_engines(
    volume: Path, tmp_path: Path
) -> None:
    async with fleet(volume, tmp_path) as (op, a):
        sql = await op.apply(op.adapter("sql", residency="onDemand"))
        assert ready(sql)[:2] == ("True", "Ready")
        assert (sql.status.residency, sql.status.tier_summary) == ("onDemand", "staged")
        assert a.engine.loads == []
        assert await a.answer("team-a/sql") == sql.status.digest[7:19]
        (link,) = op.fleet.links.all()
        await link.refresh()
        again = await op.apply(sql)
        assert again.status.tier_summary == "gpu"
        host = op.adapter("sql", residency="host")
        await op.apply(host.model_copy(update={"status": again.status}))
        (revision,) = a.engine.revisions.values()
        assert (revision.residency, len(a.engine.loads)) == ("host", 1)


async def test_an_engine_beyond_the_replicas_that_is_asked_gets_it_as_a_guest(
    volume: Path, tmp_path: Path
) -> None:
    async with fleet(volume, tmp_path, engines=2) as (op, a, b):
        one = {"policy": "Spread", "replicas": 1}
        sql = await op.apply(op.adapter("sql", placement=one))
        assert (sql.status.engines_summary, b.engine.loads) == ("1/1", [])
        sql, text = await asked(op, b, sql)
        assert text == sql.status.digest[7:19] == await a.answer("team-a/sql")
        assert (sql.status.engines_summary, ready(sql)[0]) == ("2/2", "True")
        assert [each.guest for each in sql.status.engines] == [False, True]
        residencies = [r.residency for rig in (a, b) for r in rig.engine.revisions.values()]
        assert residencies == ["", "onDemand"]

        # It stays for as long as it is used, whoever plans; what is not on demand takes its place.
        op.forget_sources()
        op.fleet._planners.clear()
        for link in op.fleet.links.all():
            await link.refresh()
        sql = await op.apply(sql)
        assert (sql.status.engines_summary, len(b.engine.loads)) == ("2/2", 1)
        op.fleet.world.pools["team-a"][:] = [pool(maxAdaptersPerEngine=1)]
        chat = await op.apply(op.adapter("chat", "d02-all-fp32", placement=one))
        assert ready(chat)[0] == "True"
        sql = await op.apply(sql)
        assert (sql.status.engines_summary, ready(sql)[0]) == ("1/1", "True")
        assert [list(rig.engine.served) for rig in (a, b)] == [["team-a/sql"], ["team-a/chat"]]
