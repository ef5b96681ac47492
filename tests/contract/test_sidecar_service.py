"""A real gRPC client against the real servicer and a fake engine: load, switch, unload, errors."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
import pytest
from fake_engine import BASE, Behaviour
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from lorafleet.profile import EngineProfile
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from sidecar_rig import Rig
from staging_client import reason
from waiting import until

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_loaded_adapter_answers_and_is_in_the_inventory(rig: Rig) -> None:
    digest = rig.put(1)
    loaded = await rig.load(digest)
    assert loaded.published
    assert loaded.tier == pb.TIER_GPU
    assert await rig.answer("team-a/sql") == digest[7:19]
    inventory = await rig.inventory()
    assert inventory.pod_uid == "pod-1"
    assert inventory.engine_instance == rig.engine.instance
    assert inventory.health == pb.ENGINE_HEALTH_READY
    assert [(a.served_name, a.adapter, a.digest) for a in inventory.loaded] == [
        ("team-a/sql", "team-a/sql", digest)
    ]
    assert [(s.digest, s.in_use) for s in inventory.staged] == [(digest, True)]
    assert inventory.max_cpu_loras == 3
    assert inventory.base_model == BASE


async def test_loading_twice_loads_once(rig: Rig) -> None:
    digest = rig.put(1)
    first, second = await asyncio.gather(rig.load(digest), rig.load(digest))
    assert first.lora_int_id == second.lora_int_id
    assert rig.engine.loads == [("team-a/sql", digest)]


async def test_a_new_revision_takes_the_name_while_old_requests_finish_on_the_old_one(
    rig: Rig,
) -> None:
    one, two = rig.put(1), rig.put(2)
    await rig.load(one)
    running = [await rig.held_request("team-a/sql") for _ in range(8)]
    switching = asyncio.create_task(rig.load(two))
    await until(lambda: rig.engine.revisions[rig.engine.served["team-a/sql"]].digest == two)
    assert await rig.answer("team-a/sql") == two[7:19]
    await until(lambda: any(a.draining for a in rig.sidecar.agent.board.current.loaded))
    draining = next(a for a in rig.sidecar.agent.board.current.loaded if a.draining)
    assert (draining.digest, draining.in_flight, draining.published) == (one, 8, False)
    rig.engine.release()
    assert set(await asyncio.gather(*running)) == {one[7:19]}
    loaded = await switching
    assert loaded.lora_int_id > draining.lora_int_id
    assert [each.digest for each in rig.engine.revisions.values()] == [two]


async def test_a_drain_that_takes_too_long_goes_on_in_the_background(rig: Rig) -> None:
    one, two = rig.put(1), rig.put(2)
    await rig.load(one)
    running = await rig.held_request("team-a/sql")
    assert (await rig.load(two, drain_timeout_seconds=1)).published
    assert {each.digest for each in rig.engine.revisions.values()} == {one, two}
    rig.engine.release()
    assert await running == one[7:19]
    await until(lambda: [each.digest for each in rig.engine.revisions.values()] == [two])


async def test_other_adapters_load_while_one_drains(rig: Rig) -> None:
    one, two, other = rig.put(1), rig.put(2), rig.put(3, "team-b/chat")
    await rig.load(one)
    await rig.held_request("team-a/sql")
    draining = asyncio.create_task(rig.load(two, drain_timeout_seconds=30))
    loaded = await rig.load(other, "team-b/chat")
    assert loaded.published
    assert not draining.done()
    rig.engine.release()
    assert (await draining).digest == two


async def test_a_prepared_revision_stays_unpublished_until_it_is_asked_for(rig: Rig) -> None:
    one, two = rig.put(1), rig.put(2)
    await rig.load(one)
    prepared = await rig.load(two, publish=False)
    assert not prepared.published
    assert not prepared.draining
    assert await rig.answer("team-a/sql") == one[7:19]
    await rig.sidecar.restorer.once()
    assert {each.digest for each in rig.engine.revisions.values()} == {one, two}
    published = await rig.load(two)
    assert published.lora_int_id == prepared.lora_int_id
    assert await rig.answer("team-a/sql") == two[7:19]
    assert len(rig.engine.loads) == 2


async def test_a_rollback_to_the_published_revision_forgets_the_prepared_one(rig: Rig) -> None:
    one, two = rig.put(1), rig.put(2)
    await rig.load(one)
    await rig.load(two, publish=False)
    await rig.load(one)
    await until(lambda: [each.digest for each in rig.engine.revisions.values()] == [one])
    assert await rig.answer("team-a/sql") == one[7:19]


async def test_a_refused_second_revision_leaves_the_first_untouched(rig: Rig) -> None:
    one, two = rig.put(1), rig.put(2)
    await rig.load(one)
    rig.engine.behaviour.refuse[two] = "LoRA rank 16 is greater than max_lora_rank 8."
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await rig.load(two)
    assert failure.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert reason(failure.value) == "EngineRejected"
    assert failure.value.details() == (
        "adapter team-a/sql: LoRA rank 16 is greater than max_lora_rank 8."
    )
    assert await rig.answer("team-a/sql") == one[7:19]
    assert [each.digest for each in rig.engine.revisions.values()] == [one]


async def test_a_slot_that_is_not_what_was_staged_is_never_published(rig: Rig) -> None:
    one, two = rig.put(1), rig.put(2)
    line = "model.layers.0.mlp.gate_proj: lora_A in the engine's slot is not what was staged"
    rig.engine.behaviour.wrong = {one: line, two: line}
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await rig.load(one)
    assert reason(failure.value) == "EngineRejected"
    assert failure.value.details() == f"adapter team-a/sql: {line}"
    assert (rig.engine.served, rig.engine.revisions) == ({}, {})
    del rig.engine.behaviour.wrong[one]
    await rig.load(one)
    with pytest.raises(grpc.aio.AioRpcError, match="is not what was staged"):
        await rig.load(two)
    assert await rig.answer("team-a/sql") == one[7:19]
    assert [each.digest for each in rig.engine.revisions.values()] == [one]
    assert [each.verified for each in rig.engine.revisions.values()] == [True]


async def test_what_is_being_proved_is_told_as_unproved(rig: Rig) -> None:
    """Whoever takes it for proved decides that all engines have it, or makes it what is served."""
    digest = rig.put(1)
    rig.engine.behaviour.proofs_go_on.clear()
    loading = asyncio.create_task(rig.load(digest, publish=False))
    await until(lambda: rig.engine.revisions)
    assert [each.unproved for each in (await rig.inventory()).loaded] == [True]
    rig.engine.behaviour.proofs_go_on.set()
    await loading
    assert [each.unproved for each in (await rig.inventory()).loaded] == [False]


@pytest.mark.parametrize("misfortune", ["not listed in /v1/models", "answers no token"])
async def test_a_revision_that_does_not_prove_itself_is_switched_back(
    rig: Rig, misfortune: str
) -> None:
    one, two = rig.put(1), rig.put(2)
    await rig.load(one)
    if misfortune == "answers no token":
        rig.engine.behaviour.mute.add(two)
    else:
        rig.engine.behaviour.unlisted.add("team-a/sql")
    with pytest.raises(grpc.aio.AioRpcError, match=r"adapter team-a/sql: [Ee]ngine"):
        await rig.load(two)
    rig.engine.behaviour.unlisted.clear()
    assert await rig.answer("team-a/sql") == one[7:19]
    await until(lambda: [each.digest for each in rig.engine.revisions.values()] == [one])


async def test_a_first_revision_that_does_not_prove_itself_is_not_served(rig: Rig) -> None:
    one = rig.put(1)
    rig.engine.behaviour.mute.add(one)
    with pytest.raises(grpc.aio.AioRpcError, match="EngineCore encountered an issue"):
        await rig.load(one)
    assert rig.engine.served == {}
    await until(lambda: rig.engine.revisions == {})


async def test_unloading_hides_drains_unloads_and_frees(rig: Rig) -> None:
    digest, other = rig.put(1), rig.put(2, "team-b/chat")
    await rig.load(digest)
    await rig.load(other, "team-b/chat")
    running = await rig.held_request("team-a/sql")
    unloading = asyncio.create_task(rig.unload(drop_staged=True))
    await until(lambda: "team-a/sql" not in rig.engine.served)
    assert not unloading.done()
    rig.engine.release()
    assert await running == digest[7:19]
    await unloading
    inventory = await rig.inventory()
    assert [each.served_name for each in inventory.loaded] == ["team-b/chat"]
    assert [each.digest for each in inventory.staged] == [other]
    await rig.unload(drop_staged=True)  # again: nothing to do, no error


async def test_an_unload_that_waits_in_vain_says_what_still_runs_and_ends_later(rig: Rig) -> None:
    await rig.load(rig.put(1))
    await rig.held_request("team-a/sql")
    await rig.held_request("team-a/sql")
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await rig.unload(drain_timeout_seconds=1, drop_staged=True)
    assert failure.value.details() == (
        "served name team-a/sql is hidden, but 2 requests still run on it after 1 s"
    )
    rig.engine.release()
    await until(lambda: rig.engine.revisions == {} and not rig.sidecar.store.revisions())
    assert not rig.sidecar.agent.desired.names


async def test_a_load_during_the_drain_of_an_unload_takes_the_name_back(rig: Rig) -> None:
    one, two = rig.put(1), rig.put(2)
    await rig.load(one)
    await rig.held_request("team-a/sql")
    unloading = asyncio.create_task(rig.unload(drop_staged=True))
    await until(lambda: "team-a/sql" not in rig.engine.served)
    assert (await rig.load(two, drain_timeout_seconds=1)).published
    await unloading
    rig.engine.release()
    await until(lambda: [each.digest for each in rig.engine.revisions.values()] == [two])
    assert await rig.answer("team-a/sql") == two[7:19]


async def test_unloading_keeps_staged_content_that_another_name_uses(rig: Rig) -> None:
    digest = rig.put(1)
    await rig.load(digest)
    await rig.load(digest, "team-b/copy")
    await rig.unload(drop_staged=True)
    assert [each.digest for each in (await rig.inventory()).staged] == [digest]
    assert await rig.answer("team-b/copy") == digest[7:19]


async def test_a_served_name_belongs_to_the_adapter_that_published_it(rig: Rig) -> None:
    one, two = rig.put(1), rig.put(2)
    await rig.load(one, "org/adapter", adapter="team-b/sql")
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await rig.load(two, "org/adapter", adapter="team-a/sql")
    assert reason(failure.value) == "NameTaken"
    assert failure.value.details() == "served name org/adapter is taken by team-b/sql"
    await rig.unload("org/adapter", adapter="team-a/sql")  # not its own: nothing happens
    assert await rig.answer("org/adapter") == one[7:19]


async def test_the_base_models_name_is_nobodys(rig: Rig) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await rig.load(rig.put(1), BASE)
    assert reason(failure.value) == "NameTaken"
    assert failure.value.details() == (f"served name {BASE} conflicts with a served base model")


@pytest.mark.parametrize("name", ["", "..", "../../etc", "/etc", "a" * 300, "tab\there"])
async def test_a_name_that_nobody_can_use_is_refused(rig: Rig, name: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="invalid adapter name") as failure:
        await rig.load(rig.put(1), name, adapter="team-a/sql")
    assert failure.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert rig.engine.loads == []


async def test_a_revision_that_is_not_staged_is_asked_for_again(rig: Rig) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match=r"is not staged in this pod") as failure:
        await rig.load("sha256:" + "0" * 64)
    assert reason(failure.value) == "TransferInterrupted"
    assert rig.engine.loads == []


async def test_a_cancelled_call_does_not_leave_a_switch_half_done(rig: Rig) -> None:
    digest = rig.put(1)
    rig.engine.behaviour.loads_go_on.clear()
    call = asyncio.create_task(rig.load(digest))
    await until(lambda: rig.engine.loads)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    rig.engine.behaviour.loads_go_on.set()
    await until(lambda: "team-a/sql" in rig.engine.served)
    await until(lambda: rig.sidecar.agent.counters.operations["load", "ok"] == 1)
    assert await rig.answer("team-a/sql") == digest[7:19]


async def test_pinning_follows_the_request(rig: Rig) -> None:
    digest = rig.put(1)
    assert (await rig.load(digest, pinned=True)).pinned
    assert not (await rig.load(digest, pinned=False)).pinned
    assert len(rig.engine.loads) == 1


async def test_an_evicted_adapter_is_reported_as_staged_and_comes_back(rig: Rig) -> None:
    digests = [rig.put(n, f"team-a/a{n}") for n in range(4)]
    for number, digest in enumerate(digests):
        await rig.load(digest, f"team-a/a{number}")
    tiers = {a.served_name: a.tier for a in (await rig.inventory()).loaded}
    assert tiers == {
        "team-a/a0": pb.TIER_STAGED,
        "team-a/a1": pb.TIER_HOST,
        "team-a/a2": pb.TIER_GPU,
        "team-a/a3": pb.TIER_GPU,
    }
    assert await rig.answer("team-a/a0") == digests[0][7:19]
    assert rig.engine.counts["rebuilds"] == 1
    assert len(rig.engine.loads) == 4


async def test_a_watcher_hears_of_changes_and_of_nothing_else(rig: Rig) -> None:
    stream = rig.stub.WatchEngine(pb.WatchEngineRequest())
    first = (await stream.read()).inventory
    digest = rig.put(1)
    seen = [first.sequence]
    while True:
        inventory = (await stream.read()).inventory
        seen.append(inventory.sequence)
        if inventory.staged:
            break
    assert inventory.staged[0].digest == digest
    await rig.load(digest)
    while not (inventory.loaded and inventory.loaded[0].published):
        inventory = (await stream.read()).inventory
        seen.append(inventory.sequence)
    assert seen == sorted(set(seen))
    settled = rig.sidecar.agent.board.current.sequence
    for _ in range(3):
        await rig.sidecar.restorer.once()
    assert rig.sidecar.agent.board.current.sequence == settled
    stream.cancel()


async def test_the_profile_is_the_engines_and_outlives_it(rig: Rig) -> None:
    text = (await rig.stub.GetEngineProfile(pb.GetEngineProfileRequest())).profile_json
    assert EngineProfile.from_json(text).max_lora_rank == 8
    await rig.engine.kill()
    await rig.stop_sidecar()
    await rig.start_sidecar()
    again = (await rig.stub.GetEngineProfile(pb.GetEngineProfileRequest())).profile_json
    assert again == text


async def test_health_and_reflection_are_the_standard_ones(rig: Rig) -> None:
    health = health_pb2_grpc.HealthStub(rig.channel)
    for service in ("", "lorafleet.v1alpha1.SidecarService"):
        answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    reflection = reflection_pb2_grpc.ServerReflectionStub(rig.channel)
    requests = [reflection_pb2.ServerReflectionRequest(list_services="")]
    names = set()
    async for response in reflection.ServerReflectionInfo(iter(requests)):
        names = {each.name for each in response.list_services_response.service}
    assert "lorafleet.v1alpha1.SidecarService" in names
    assert "grpc.health.v1.Health" in names


async def test_two_workers_must_both_hold_an_adapter(volume: Path) -> None:
    async with Rig(volume, Behaviour(workers=2)) as rig:
        await rig.load(rig.put(1))
        inventory = await rig.inventory()
        assert [worker.rank for worker in inventory.workers] == [0, 1]
        assert [worker.loads for worker in inventory.workers] == [1, 1]
        assert inventory.workers[0].seconds["fill"] == 0.25
