"""Restarts: of vLLM alone, of the sidecar alone, of both; engines that die of a load."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
import pytest
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from lorafleet_sidecar.desired import ServedName, Target
from staging_client import reason
from waiting import until

if TYPE_CHECKING:
    from sidecar_rig import Rig


async def served(rig: Rig, name: str, digest: str) -> None:
    """Wait until the engine serves `digest` as `name` and the sidecar's table agrees."""

    def settled() -> bool:
        revision = rig.engine.revisions.get(rig.engine.served.get(name, 0))
        wish = rig.sidecar.agent.desired.names.get(name)
        return (
            revision is not None
            and revision.digest == digest
            and wish is not None
            and wish.coming is None
            and wish.current == Target(digest, "direct")
        )

    await until(settled)


async def test_what_an_engine_lost_in_a_restart_comes_back_without_anybody(rig: Rig) -> None:
    one, two = rig.put(1), rig.put(2, "team-b/chat")
    await rig.load(one)
    await rig.load(two, "team-b/chat", pinned=True)
    first = rig.engine.instance
    await rig.engine.kill()
    await until(lambda: rig.sidecar.agent.board.current.health == pb.ENGINE_HEALTH_STARTING)
    assert not rig.sidecar.agent.board.current.loaded
    await rig.engine.start()
    await served(rig, "team-a/sql", one)
    await served(rig, "team-b/chat", two)
    assert rig.engine.instance != first
    assert (await rig.inventory()).engine_instance == rig.engine.instance
    assert await rig.answer("team-a/sql") == one[7:19]
    assert rig.engine.revisions[rig.engine.served["team-b/chat"]].residency == "gpu"


async def test_what_comes_back_wrong_after_a_restart_is_not_served(rig: Rig) -> None:
    one, two = rig.put(1), rig.put(2, "team-b/chat")
    await rig.load(one)
    await rig.load(two, "team-b/chat")
    rig.engine.behaviour.wrong[one] = "model.layers.0.mlp.gate_proj: it is that of up_proj"
    await rig.engine.kill()
    await rig.engine.start()
    await served(rig, "team-b/chat", two)
    await until(lambda: rig.sidecar.agent.counters.operations["restore", "EngineRejected"] == 1)
    assert "team-a/sql" not in rig.engine.served
    assert [each.digest for each in rig.engine.revisions.values()] == [two]


async def test_what_was_proved_before_the_engine_slept_is_proved_again(rig: Rig) -> None:
    one, two = rig.put(1), rig.put(2, "team-b/chat")
    await rig.load(one)
    await rig.load(two, "team-b/chat")
    rig.engine.behaviour.wrong[one] = "model.layers.0.mlp.gate_proj: lora_A is not what was staged"
    for revision in rig.engine.revisions.values():
        revision.verified = False
    await until(lambda: "team-a/sql" not in rig.engine.served)  # rather no answer than a wrong one
    await until(lambda: all(each.verified for each in rig.engine.revisions.values()))
    assert len(rig.engine.loads) >= 2
    assert rig.engine.served.keys() == {"team-b/chat"}
    rig.engine.behaviour.wrong.clear()
    await served(rig, "team-a/sql", one)
    assert [each.digest for each in rig.engine.revisions.values()].count(two) == 1


async def test_a_call_while_the_engine_is_away_says_so(rig: Rig) -> None:
    digest = rig.put(1)
    await rig.engine.kill()
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await rig.load(digest)
    assert failure.value.code() == grpc.StatusCode.UNAVAILABLE
    assert reason(failure.value) == "EngineUnreachable"


async def test_a_sidecar_that_restarts_alone_loads_nothing_again(rig: Rig) -> None:
    digest = rig.put(1)
    await rig.load(digest)
    before = rig.sidecar.agent.board.current.sequence
    await rig.stop_sidecar()
    assert await rig.answer("team-a/sql") == digest[7:19]
    await rig.start_sidecar()
    inventory = await rig.inventory()
    assert [(a.adapter, a.digest, a.published) for a in inventory.loaded] == [
        ("team-a/sql", digest, True)
    ]
    assert inventory.sequence > before
    assert len(rig.engine.loads) == 1


async def test_an_unload_that_was_asked_while_the_engine_was_away_is_not_undone(rig: Rig) -> None:
    await rig.load(rig.put(1))
    await rig.engine.kill()
    with pytest.raises(grpc.aio.AioRpcError):
        await rig.unload(drop_staged=True)
    await rig.engine.start()
    await until(lambda: not rig.sidecar.agent.desired.names)
    assert rig.engine.loads == [("team-a/sql", rig.engine.loads[0][1])]
    assert rig.engine.served == {}
    await until(lambda: not rig.sidecar.store.revisions())


async def test_a_name_that_a_person_took_away_is_published_again(rig: Rig) -> None:
    digest = rig.put(1)
    await rig.load(digest)
    rig.engine.served.clear()
    await served(rig, "team-a/sql", digest)
    assert len(rig.engine.loads) == 1


async def test_a_lost_table_is_filled_from_what_the_engine_serves(rig: Rig) -> None:
    digest = rig.put(1)
    await rig.load(digest)
    await rig.stop_sidecar()
    await rig.start_sidecar()
    rig.sidecar.agent.desired.names.clear()
    await until(lambda: "team-a/sql" in rig.sidecar.agent.desired.names)
    assert rig.sidecar.agent.desired.names["team-a/sql"].adapter == ""
    await rig.load(digest)  # the adapter that asks becomes the owner
    assert rig.sidecar.agent.desired.names["team-a/sql"].adapter == "team-a/sql"
    assert len(rig.engine.loads) == 1


async def test_a_served_revision_that_the_arena_does_not_have_is_hidden(rig: Rig) -> None:
    digest = rig.put(1)
    await rig.load(digest)
    await rig.stop_sidecar()
    (rig.volume / "index.json").write_text("{}")
    await rig.start_sidecar()
    await until(lambda: rig.engine.served == {} and rig.engine.revisions == {})


async def test_a_stray_revision_is_unloaded_once_nothing_runs_on_it(rig: Rig) -> None:
    one = rig.put(1)
    await rig.load(one)
    await rig.held_request("team-a/sql")
    rig.sidecar.agent.desired.put(
        ServedName("team-a/sql", "team-a/sql", Target(rig.put(2), "direct"))
    )
    await until(lambda: len(rig.engine.revisions) == 2)
    await until(
        lambda: any(a.draining and a.in_flight for a in rig.sidecar.agent.board.current.loaded)
    )
    rig.engine.release()
    await until(lambda: len(rig.engine.revisions) == 1)


@pytest.mark.parametrize(
    "step", ["/v1/load", "/v1/verify", "/v1/publish", "/v1/completions", "/v1/unload"]
)
@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_engine_killed_at_any_step_of_a_switch_ends_up_on_the_new_revision(
    rig: Rig, step: str, when: str
) -> None:
    one, two, other = rig.put(1), rig.put(2), rig.put(3, "team-b/chat")
    await rig.load(one)
    await rig.load(other, "team-b/chat")
    rig.engine.behaviour.die_at = (when, step)
    # At the last step the switch itself is done, so the call may succeed.
    await asyncio.gather(rig.load(two), return_exceptions=True)
    assert not rig.engine.alive
    rig.engine.behaviour.die_at = None
    await rig.engine.start()
    await served(rig, "team-a/sql", two)
    await served(rig, "team-b/chat", other)
    await until(lambda: len(rig.engine.revisions) == 2)
    assert await rig.answer("team-a/sql") == two[7:19]


async def test_an_engine_death_during_a_load_is_held_against_the_revision(rig: Rig) -> None:
    good, bad = rig.put(1), rig.put(2, "team-b/bad")
    await rig.load(good)
    rig.engine.behaviour.deadly.add(bad)
    for death in (1, 2):
        if death == 1:
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await rig.load(bad, "team-b/bad")
            assert reason(failure.value) == "EngineUnreachable"
        await until(lambda: not rig.engine.alive)
        start = len(rig.engine.loads)
        await rig.engine.start()
        await served(rig, "team-a/sql", good)
        # The suspect is not first: the good one is back before it can do harm again.
        assert rig.engine.loads[start] == ("team-a/sql", good)
    await until(lambda: rig.sidecar.agent.desired.quarantined(bad))
    tried = rig.engine.loads.count(("team-b/bad", bad))
    rig.sidecar.restorer._not_before.clear()  # as if the pause were over
    await until(lambda: "team-b/bad" not in rig.sidecar.agent.desired.names)
    assert rig.engine.alive
    assert rig.engine.loads.count(("team-b/bad", bad)) == tried == 2
    with pytest.raises(grpc.aio.AioRpcError, match="is quarantined: the engine died 2 times"):
        await rig.load(bad, "team-b/bad")
    await rig.unload("team-b/bad", drop_staged=True)
    assert not rig.sidecar.agent.desired.deaths
