"""Requests for one revision by name, beside a name that moves on: a real sidecar, a fake engine."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc.aio
import pytest
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from staging_client import reason
from waiting import until

if TYPE_CHECKING:
    from sidecar_rig import Rig

SQL = "team-a/sql"


def gone(digest: str, here: str) -> tuple[int, str]:
    """What a request for a revision is told that is not there any more, but `here` is."""
    name = f"{SQL}@{digest[7:19]}"
    line = f"The model `{name}` does not exist: of {SQL} this engine has {here[7:19]}."
    return 404, line


async def test_a_revision_answers_to_its_name_as_long_as_requests_run_on_it(rig: Rig) -> None:
    one, two = rig.put(1), rig.put(2)
    await rig.load(one)
    assert await rig.answer(f"{SQL}@{one[7:19]}") == one[7:19]
    plain = await rig.held_request(SQL)
    await rig.load(two)
    pinned = await rig.held_request(f"{SQL}@{one[7:19]}")
    assert await rig.answer(SQL) == two[7:19]
    assert await rig.answer(f"{SQL}@{two}") == two[7:19]
    draining = next(each for each in (await rig.inventory()).loaded if each.draining)
    assert (draining.digest, draining.in_flight) == (one, 2)
    rig.engine.release()
    assert (await plain, await pinned) == (one[7:19], one[7:19])
    await until(lambda: one not in {each.digest for each in rig.engine.revisions.values()})
    assert await rig.ask(f"{SQL}@{one[7:19]}") == gone(one, two)


async def test_a_drain_that_is_over_takes_no_more_requests(rig: Rig) -> None:
    one, two = rig.put(1), rig.put(2)
    await rig.load(one)
    running = await rig.held_request(SQL)
    await rig.load(two, abort_seconds=0)
    assert await running == "", "aborted"
    await until(lambda: one not in {each.digest for each in rig.engine.revisions.values()})
    assert await rig.ask(f"{SQL}@{one[7:19]}") == gone(one, two)


async def test_a_hidden_name_hides_its_revisions_and_they_come_back_with_it(rig: Rig) -> None:
    one = rig.put(1)
    await rig.load(one)
    running = await rig.held_request(SQL)
    with pytest.raises(grpc.aio.AioRpcError, match="1 requests still run"):
        await rig.unload(drain_timeout_seconds=1)
    waiting = asyncio.create_task(rig.ask(f"{SQL}@{one[7:19]}"))
    await until(lambda: list(rig.engine.first_requests._awaited) == [SQL])
    # The probe asks by the pinned name before the served one is there.
    await rig.load(one, probe=pb.Probe(prompt="x", expect=one[7:19], max_tokens=1))
    assert await rig.answer(f"{SQL}@{one[7:19]}") == one[7:19]
    assert await waiting == (200, one[7:19])
    assert rig.engine.loads == [(SQL, one)]
    rig.engine.release()
    assert await running == one[7:19]


async def test_a_revision_that_is_only_staged_is_not_loaded_for_its_name(rig: Rig) -> None:
    one, two = rig.put(1), rig.put(2)
    await rig.load(one)
    await rig.load(two, keep=[one])
    await until(lambda: one not in {each.digest for each in rig.engine.revisions.values()})
    assert await rig.ask(f"{SQL}@{one[7:19]}") == gone(one, two)
    await rig.load(one, keep=[two])
    assert await rig.answer(f"{SQL}@{one[7:19]}") == one[7:19]


async def test_no_adapter_gets_a_pinned_name(rig: Rig) -> None:
    digest = rig.put(1)
    with pytest.raises(grpc.aio.AioRpcError, match="must not end in '@'") as refused:
        await rig.load(digest, f"{SQL}@{digest[7:19]}")
    assert reason(refused.value) == "InvalidAdapter"
    assert rig.engine.loads == []
