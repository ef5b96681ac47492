"""Requests for names that the engine lacks: brought on demand, refused, or answered at the deadline."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from fake_engine import Behaviour
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from sidecar_rig import Rig
from waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

NAME = "team-a/sql"


@pytest.fixture
async def rig(volume: Path) -> AsyncIterator[Rig]:
    async with Rig(volume) as running:
        await until(lambda: running.engine.first_requests._listening)
        yield running


class Watcher:
    """The operator's ear: a stream of inventories, and its mouth."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._stream = rig.stub.WatchEngine(pb.WatchEngineRequest())

    async def hear(self, *names: str) -> None:
        """Wait until exactly these names are requested."""
        async with asyncio.timeout(60):
            while (await self._stream.read()).inventory.requested != list(names):
                pass

    def leave(self) -> None:
        """End the stream, as an operator that stops."""
        self._stream.cancel()

    async def refuse(self, *names: str, message: str = "", exists: bool = False) -> None:
        refused = [pb.RefusedName(served_name=n, message=message, exists=exists) for n in names]
        await self._rig.stub.RefuseNames(pb.RefuseNamesRequest(names=refused))


@pytest.fixture
async def watcher(rig: Rig) -> Watcher:
    watching = Watcher(rig)
    await watching.hear()
    return watching


def loaded(inventory: pb.Inventory) -> list[tuple[Any, ...]]:
    return [(a.digest, a.published, a.tier, a.residency) for a in inventory.loaded]


async def test_an_adapter_on_demand_is_known_but_not_loaded_before_a_request(rig: Rig) -> None:
    digest = rig.put(1)
    answer = await rig.load(digest, residency="onDemand")
    assert (answer.published, answer.tier, answer.residency) == (True, pb.TIER_STAGED, "onDemand")
    assert rig.engine.loads == []
    assert [each.in_use for each in (await rig.inventory()).staged] == [True]
    assert await rig.answer(NAME) == digest[7:19]
    assert loaded(await rig.inventory()) == [(digest, True, pb.TIER_GPU, "onDemand")]


async def test_twenty_first_requests_at_once_make_one_load(rig: Rig) -> None:
    digest = rig.put(1)
    await rig.load(digest, residency="onDemand")
    rig.engine.behaviour.loads_go_on.clear()
    answers = asyncio.gather(*(rig.answer(NAME) for _ in range(20)))
    await until(lambda: [w.requests for w in rig.engine.first_requests._awaited.values()] == [20])
    rig.engine.behaviour.loads_go_on.set()
    assert await answers == [digest[7:19]] * 20
    assert rig.engine.loads == [(NAME, digest)]
    assert rig.engine.first_requests.figures()["outcomes"] == {"served": 20}


async def test_others_are_answered_while_one_waits(rig: Rig, watcher: Watcher) -> None:
    digest = rig.put(1)
    await rig.load(digest)
    waiting = asyncio.create_task(rig.ask("team-b/chat"))
    await watcher.hear("team-b/chat")
    assert await rig.answer(NAME) == digest[7:19]
    other = rig.put(2, "team-b/chat")
    await rig.load(other, "team-b/chat")
    assert await waiting == (200, other[7:19])
    await watcher.hear()


async def test_a_name_that_the_operator_refuses_is_not_found_and_may_exist_later(
    rig: Rig, watcher: Watcher
) -> None:
    waiting = asyncio.gather(*(rig.ask("team-x/other") for _ in range(3)))
    await watcher.hear("team-x/other")
    await watcher.refuse("team-x/other")
    line = "The model `team-x/other` does not exist."
    assert await waiting == [(404, line)] * 3
    await watcher.hear()
    # The answer is remembered for a while, and no obstacle once the name is there.
    assert await rig.ask("team-x/other") == (404, line)
    assert rig.sidecar.agent.requested == ()
    digest = rig.put(1, "team-x/other")
    await rig.load(digest, "team-x/other", residency="onDemand")
    assert await rig.ask("team-x/other") == (200, digest[7:19])


async def test_an_adapter_that_cannot_be_brought_now_is_unavailable_with_the_line(
    rig: Rig, watcher: Watcher
) -> None:
    waiting = asyncio.create_task(rig.ask(NAME))
    await watcher.hear(NAME)
    await watcher.refuse(NAME, message="team-a/sql: no engine has room", exists=True)
    assert await waiting == (503, "team-a/sql: no engine has room")


async def test_without_an_operator_nobody_waits_for_an_unknown_name(rig: Rig) -> None:
    status, line = await rig.ask("team-x/other")
    assert status == 404
    assert "team-x/other" in line
    assert "no operator is connected" in line


async def test_those_that_wait_outlast_a_restart_of_the_operator(rig: Rig) -> None:
    watcher = Watcher(rig)
    await watcher.hear()
    waiting = asyncio.create_task(rig.ask(NAME))
    await watcher.hear(NAME)
    watcher.leave()
    await until(lambda: not rig.sidecar.agent.board.watchers)
    assert (await rig.ask("team-x/other"))[0] == 404
    await Watcher(rig).hear(NAME)
    digest = rig.put(1)
    await rig.load(digest)
    assert await waiting == (200, digest[7:19])


@pytest.mark.parametrize(
    "name", ["x" * 254, "../etc/passwd", "/etc/passwd", "a\tb", "a\x00b"], ids=repr
)
async def test_a_name_that_no_adapter_can_have_is_refused_before_anything_is_kept(
    rig: Rig, watcher: Watcher, name: str
) -> None:
    status, line = await rig.ask(name)
    assert (status, line[:11]) == (404, "The model `")
    assert len(line) < 300
    assert rig.engine.first_requests.figures()["outcomes"] == {}


async def test_a_cancelled_request_leaves_nothing_behind(rig: Rig, watcher: Watcher) -> None:
    waiting = asyncio.create_task(rig.engine.first_requests.bring(NAME))
    await watcher.hear(NAME)
    waiting.cancel()
    await watcher.hear()
    assert rig.engine.first_requests._awaited == {}
    assert rig.engine.first_requests.figures()["outcomes"] == {"gone": 1}


async def test_a_refused_load_is_told_to_those_who_wait_and_tried_again_later(rig: Rig) -> None:
    digest = rig.put(1)
    await rig.load(digest, residency="onDemand")
    rig.engine.behaviour.refuse[digest] = "CUDA error: out of luck"
    status, line = await rig.ask(NAME)
    assert status == 503
    assert "CUDA error: out of luck" in line
    assert (await rig.inventory()).loaded[0].tier == pb.TIER_STAGED
    rig.engine.behaviour.refuse.clear()
    async with asyncio.timeout(60):
        while (await rig.ask(NAME))[0] != 200:
            await asyncio.sleep(0.1)


async def test_more_unknown_names_than_are_told_at_a_time_all_get_their_answer(
    rig: Rig, watcher: Watcher
) -> None:
    names = [f"team-x/{i}" for i in range(100)]

    async def refuse_all() -> None:
        while True:
            requested = rig.sidecar.agent.requested
            assert len(requested) <= 64
            if requested:
                await watcher.refuse(*requested)
            await asyncio.sleep(0.02)

    operator = asyncio.create_task(refuse_all())
    answers = await asyncio.gather(*(rig.ask(name) for name in names))
    operator.cancel()
    assert {status for status, _ in answers} == {404}


async def test_a_sidecar_that_restarts_finds_the_requests_that_wait(
    rig: Rig, watcher: Watcher
) -> None:
    waiting = asyncio.create_task(rig.ask(NAME))
    await watcher.hear(NAME)
    await rig.stop_sidecar()
    await rig.start_sidecar()
    await until(lambda: rig.sidecar.agent.requested == (NAME,))  # before an operator is back
    await Watcher(rig).hear(NAME)
    digest = rig.put(1)
    await rig.load(digest)
    assert await waiting == (200, digest[7:19])


async def test_a_new_engine_loads_what_is_on_demand_when_it_is_asked(rig: Rig) -> None:
    sql, chat = rig.put(1), rig.put(2, "team-a/chat")
    await rig.load(sql, residency="onDemand")
    await rig.load(chat, "team-a/chat", residency="host")
    assert await rig.answer(NAME) == sql[7:19]
    await rig.engine.kill()
    await rig.engine.start()
    await until(lambda: "team-a/chat" in rig.engine.served)
    assert rig.engine.loads[2:] == [("team-a/chat", chat)]
    assert rig.engine.revisions[rig.engine.served["team-a/chat"]].residency == "host"
    await until(lambda: rig.engine.first_requests._listening)
    assert await rig.answer(NAME) == sql[7:19]


async def test_an_update_of_what_sleeps_loads_nothing_and_of_what_is_awake_switches(
    rig: Rig,
) -> None:
    one, two, three = (rig.put(seed) for seed in (1, 2, 3))
    await rig.load(one, residency="onDemand")
    prepared = await rig.load(two, residency="onDemand", publish=False)
    assert (prepared.published, prepared.tier) == (False, pb.TIER_STAGED)
    await rig.load(two, residency="onDemand")
    assert rig.engine.loads == []
    assert await rig.answer(NAME) == two[7:19]
    await rig.load(three, residency="onDemand")
    assert await rig.answer(NAME) == three[7:19]
    assert [digest for _, digest in rig.engine.loads] == [two, three]


async def test_another_residency_loads_what_slept(rig: Rig) -> None:
    digest = rig.put(1)
    await rig.load(digest, residency="onDemand")
    await rig.load(digest)
    assert rig.engine.loads == [(NAME, digest)]
    assert loaded(await rig.inventory()) == [(digest, True, pb.TIER_GPU, "")]


async def test_residency_is_a_word_that_is_known(rig: Rig) -> None:
    with pytest.raises(Exception, match="residency 'attic' is unknown"):
        await rig.load(rig.put(1), residency="attic")


async def test_the_deadline_ends_the_wait(volume: Path) -> None:
    async with Rig(volume, Behaviour(first_request_seconds=0.3)) as rig:
        await until(lambda: rig.engine.first_requests._listening)
        watcher = Watcher(rig)
        await watcher.hear()
        status, line = await rig.ask(NAME)
        assert (status, line) == (
            503,
            f"The model `{NAME}` was not loaded within 0.3 s; try again.",
        )
        await watcher.hear()


async def test_the_metrics_count_requests_and_how_long_they_waited(rig: Rig) -> None:
    await rig.load(rig.put(1), residency="onDemand")
    await rig.answer(NAME)
    await rig.ask("team-x/other")
    async with httpx.AsyncClient(trust_env=False) as client:
        await rig.inventory()
        url = f"http://127.0.0.1:{rig.sidecar.metrics_port}/metrics"
        lines = (await client.get(url)).text.splitlines()
    assert 'lorafleet_engine_first_requests_total{outcome="served"} 1.0' in lines
    assert 'lorafleet_engine_first_requests_total{outcome="refused"} 1.0' in lines
    assert 'lorafleet_engine_first_request_seconds_bucket{le="+Inf"} 1.0' in lines
    assert "lorafleet_engine_first_request_seconds_count 1.0" in lines
    loads = 'lorafleet_sidecar_engine_requests_total{operation="awaken",outcome="ok"}'
    assert f"{loads} 1.0" in lines


async def test_a_pinned_name_brings_its_adapter_and_is_its_revision_or_none(rig: Rig) -> None:
    digest, other = rig.put(1), rig.put(2)
    await rig.load(digest, residency="onDemand", keep=[other])
    right, wrong = await asyncio.gather(
        rig.ask(f"{NAME}@{digest[7:19]}"), rig.ask(f"{NAME}@{other[7:19]}")
    )
    assert right == (200, digest[7:19])
    assert wrong == (
        404,
        f"The model `{NAME}@{other[7:19]}` does not exist: of {NAME} this engine has {digest[7:19]}.",
    )
    assert rig.engine.loads == [(NAME, digest)]


async def test_the_operator_is_asked_for_the_adapter_of_a_pinned_name(
    rig: Rig, watcher: Watcher
) -> None:
    digest = rig.put(1)
    waiting = asyncio.create_task(rig.ask(f"{NAME}@{digest}"))
    await watcher.hear(NAME)
    await rig.load(digest)
    assert await waiting == (200, digest[7:19])
    nobodys = asyncio.create_task(rig.ask(f"team-x/other@{digest}"))
    await watcher.hear("team-x/other")
    await watcher.refuse("team-x/other")
    assert await nobodys == (404, "The model `team-x/other` does not exist.")
