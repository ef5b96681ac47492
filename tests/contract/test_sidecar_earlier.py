"""What a sidecar keeps for a rollback, asks before it publishes, and ends when a drain takes too long."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc.aio
import pytest
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from sidecar_rig import MIB, Rig, digest_of
from waiting import until

if TYPE_CHECKING:
    from pathlib import Path

SQL = "team-a/sql"


def staged(rig: Rig) -> set[str]:
    return {each.digest for each in rig.sidecar.store.revisions()}


async def serve(rig: Rig, digest: str, *keep: str, **fields: Any) -> pb.LoadedAdapter:
    """Load and publish as the operator does."""
    values = {"keep": keep, "free_others": True, "abort_seconds": 60, **fields}
    return await rig.load(digest, **values)


async def test_what_is_not_kept_leaves_the_arena_when_it_is_replaced(volume: Path) -> None:
    async with Rig(volume) as rig:
        one, two, three = rig.put(1), rig.put(2), rig.put(3)
        await serve(rig, one)
        await serve(rig, two, one)
        assert staged(rig) == {one, two, three}
        kept = {each.digest for each in (await rig.inventory()).staged if each.kept}
        assert kept == {one}
        await serve(rig, three, two)  # `one` is no longer kept
        assert staged(rig) == {two, three}
        await serve(rig, three)
        assert staged(rig) == {three}


async def test_what_is_kept_for_one_name_or_came_with_another_adapter_stays(volume: Path) -> None:
    async with Rig(volume) as rig:
        shared, new = rig.put(1, adapter="team-b/chat"), rig.put(2)
        await serve(rig, shared)
        await serve(rig, new)
        assert staged(rig) == {shared, new}
        third = rig.put(3)
        await serve(rig, third, new, served_name="team-a/other")
        await serve(rig, third)  # takes the place of `new`, which the other name keeps
        assert new in staged(rig)


async def test_a_sidecar_that_starts_again_knows_what_to_keep(volume: Path) -> None:
    async with Rig(volume) as rig:
        one, two = rig.put(1), rig.put(2)
        await serve(rig, one)
        await serve(rig, two, one)
        await rig.stop_sidecar()
        await rig.start_sidecar()
        kept = {each.digest for each in (await rig.inventory()).staged if each.kept}
        assert kept == {one}
        await serve(rig, two)
        assert staged(rig) == {two}


async def test_what_is_kept_makes_room_last(volume: Path) -> None:
    async with Rig(volume, arena_bytes=8 * MIB) as rig:  # four of them
        kept, served = rig.put(1), rig.put(2)
        await serve(rig, kept)
        await serve(rig, served, kept)
        used_later = rig.put(3, adapter="team-b/chat")
        rig.put(4)
        rig.put(5)
        assert used_later not in staged(rig)
        assert kept in staged(rig)
        rig.put(6)
        rig.put(7)
        assert kept in staged(rig)
        everything = [rig.put(number) for number in (8, 9)]
        await serve(rig, everything[0], served_name="team-b/x")
        await serve(rig, everything[1], served_name="team-b/y")
        last = rig.put(10)  # the engine may read all but what is kept
        assert staged(rig) == {served, *everything, last}


async def test_a_wrong_answer_to_the_probe_keeps_the_name_where_it_is(volume: Path) -> None:
    async with Rig(volume) as rig:
        one, two = rig.put(1), rig.put(2)
        await serve(rig, one)
        probe = pb.Probe(prompt="who are you?", expect=one[7:19], max_tokens=4)
        with pytest.raises(grpc.aio.AioRpcError, match="was answered with") as refusal:
            await serve(rig, two, probe=probe, publish=False)
        assert two[7:19] in str(refusal.value.details())
        assert await rig.answer(SQL) == one[7:19]
        await until(lambda: [r.digest for r in rig.engine.revisions.values()] == [one])
        await until(lambda: staged(rig) == {one})  # nobody wants it any more
        rig.put(2)
        await serve(rig, two, one, probe=pb.Probe(prompt="who are you?", max_tokens=1))
        assert await rig.answer(SQL) == two[7:19]


async def test_the_sidecars_own_questions_are_no_requests_of_clients(volume: Path) -> None:
    async with Rig(volume) as rig:
        one = rig.put(1)
        await serve(rig, one, probe=pb.Probe(prompt="hello", max_tokens=1))
        await rig.answer(SQL)
        (loaded,) = (await rig.inventory()).loaded
        assert (loaded.requests, loaded.errors) == (1, 0)
        rig.engine.behaviour.failing.add(one)
        failed = await asyncio.gather(rig.answer(SQL), return_exceptions=True)
        assert isinstance(failed[0], Exception)
        (loaded,) = (await rig.inventory()).loaded
        assert (loaded.requests, loaded.errors) == (2, 1)


@pytest.mark.parametrize("way", ["replaced", "unloaded"])
async def test_requests_that_outlast_the_drain_are_aborted(volume: Path, way: str) -> None:
    async with Rig(volume) as rig:
        one, two = rig.put(1), rig.put(2)
        await serve(rig, one)
        running = await rig.held_request(SQL)
        fields = {"abort_seconds": 0, "drain_timeout_seconds": 5}
        if way == "replaced":
            await serve(rig, two, one, **fields)
        else:
            await rig.unload(**fields)
        assert await running == ""
        await until(lambda: one not in {r.digest for r in rig.engine.revisions.values()})


async def test_without_a_limit_requests_run_to_their_end(volume: Path) -> None:
    async with Rig(volume) as rig:
        one, two = rig.put(1), rig.put(2)
        await rig.load(one)
        running = await rig.held_request(SQL)
        await rig.load(two, drain_timeout_seconds=1)
        draining = next(each for each in (await rig.inventory()).loaded if each.draining)
        assert (draining.digest, draining.in_flight) == (digest_of(1), 1)
        rig.engine.release()
        assert await running == one[7:19]
