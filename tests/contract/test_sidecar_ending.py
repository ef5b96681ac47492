"""Ending vLLM on purpose: the real sidecar beside the fake engine, and calls meant for others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc.aio
import pytest
from fake_engine import Behaviour
from lorafleet.errors import EngineError, EngineUnreachable
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from lorafleet_operator.transfer.client import SidecarClient
from lorafleet_sidecar.addressee import POD_KEY
from sidecar_rig import Rig
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NAME = "team-a/sql"


def client_of(rig: Rig, pod_uid: str = "pod-1") -> SidecarClient:
    return SidecarClient("127.0.0.1", rig.sidecar.port, pod_uid=pod_uid)


async def test_vllm_ends_when_nothing_runs_and_all_names_come_back_from_the_arena(
    volume: Path,
) -> None:
    async with Rig(volume) as rig:
        digest = rig.put(1)
        await rig.load(digest)
        first = rig.engine.instance
        client = client_of(rig)
        request = await rig.held_request(NAME)
        with pytest.raises(EngineError, match="1 requests are running"):
            await client.restart_engine(first, force=False, seconds=60)
        assert rig.engine.ends == []
        rig.engine.release()
        await request

        await client.restart_engine(first, force=False, seconds=60)
        assert rig.engine.ends == [first]
        await rig.engine.kill()
        await rig.engine.start()
        await until(lambda: rig.engine.served)
        assert await rig.answer(NAME) == digest[7:19]
        assert rig.sidecar.agent.counters.engine_deaths == 0, "it was no load that ended it"

        await client.restart_engine(first, force=True, seconds=60)
        assert rig.engine.ends == [first], "another instance has been started again already"
        await client.close()


async def test_vllm_ends_by_force_while_requests_run(volume: Path) -> None:
    async with Rig(volume) as rig:
        await rig.load(rig.put(1))
        await rig.held_request(NAME)
        client = client_of(rig)
        await client.restart_engine(rig.engine.instance, force=True, seconds=60)
        assert rig.engine.ends == [rig.engine.instance]
        await client.close()


async def test_an_engine_without_the_plugin_cannot_be_ended(volume: Path) -> None:
    async with Rig(volume, Behaviour(plugin=False)) as rig:
        await until(lambda: rig.sidecar.agent.observed.usable)
        instance = (await rig.inventory()).engine_instance
        client = client_of(rig)
        with pytest.raises(EngineError, match="the plugin"):
            await client.restart_engine(instance, force=True, seconds=60)
        await client.close()


async def test_no_order_that_was_meant_for_another_pod_is_carried_out(volume: Path) -> None:
    async with Rig(volume) as rig:
        digest = rig.put(1)
        client = client_of(rig, "pod-2")
        load = pb.LoadAdapterRequest(adapter=NAME, served_name=NAME, digest=digest, publish=True)
        unload = pb.UnloadAdapterRequest(adapter=NAME, served_name=NAME, drop_staged=True)
        send = pb.SendAdapterRequest(digest=digest)
        line = "this sidecar is pod uid pod-1, the call is for pod-2"
        with pytest.raises(EngineUnreachable, match=line):
            await client.load(load, 60)
        with pytest.raises(EngineUnreachable, match=line):
            await client.unload(unload, 60)
        with pytest.raises(EngineUnreachable, match=line):
            await client.send(send, 60)
        with pytest.raises(EngineUnreachable, match=line):
            await client.restart_engine(rig.engine.instance, force=True, seconds=60)
        stream = client.stage()
        with pytest.raises(EngineUnreachable, match=line):
            await stream.read()
        assert rig.engine.loads == []
        assert rig.engine.ends == []
        assert [each.digest for each in (await rig.inventory()).staged] == [digest]
        await client.close()


@pytest.mark.parametrize("watch", [False, True])
async def test_reads_for_another_pod_are_refused_too_if_they_say_so(
    volume: Path, watch: bool
) -> None:
    async with Rig(volume) as rig:
        told = ((POD_KEY, "pod-2"),)
        calls: dict[bool, Callable[[], grpc.aio.Call]] = {
            False: lambda: rig.stub.ListAdapters(pb.ListAdaptersRequest(), metadata=told),
            True: lambda: rig.stub.WatchEngine(pb.WatchEngineRequest(), metadata=told),
        }
        call = calls[watch]()
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await (call.read() if watch else call)
        assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE
