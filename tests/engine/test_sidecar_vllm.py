"""The real sidecar against a real vLLM on the CPU: load, switch under load, restart, unload."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import grpc.aio
import httpx
import pytest
from lorafleet.profile import EngineProfile
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from real_engine import BASE, RealEngine, answer, source, until
from sidecar_rig import Rig
from staging_client import stage
from tiny_models import make_dense

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.engine


@asynccontextmanager
async def requests_run(rig: Rig) -> AsyncIterator[None]:
    """Some ask the base model again and again, each beginning while the others are under way."""
    ended = asyncio.Event()

    async def keep_asking(tokens: int) -> None:
        while not ended.is_set():
            await answer(rig, BASE, tokens)

    # Of as many tokens each they would run in one batch, and end in one step: then none is under way.
    asking = [asyncio.create_task(keep_asking(tokens)) for tokens in (900, 730, 570, 410)]
    try:
        async with httpx.AsyncClient(base_url=rig.engine.url, trust_env=False) as client:
            while await running(client) == 0:
                await asyncio.sleep(0.01)
        yield
    finally:
        ended.set()
        await asyncio.gather(*asking)


async def running(client: httpx.AsyncClient) -> int:
    """Return how many requests vLLM says it runs."""
    lines = (await client.get("/metrics")).text.splitlines()
    found = next(line for line in lines if line.startswith("vllm:num_requests_running"))
    return int(float(found.split()[-1]))


async def test_the_life_of_an_adapter_on_a_real_engine(volume: Path, tmp_path: Path) -> None:
    model = make_dense(tmp_path / "model")
    rig = Rig(volume, refresh_seconds=0.5, drain_timeout_seconds=60)
    engine = RealEngine(volume, model, tmp_path / "vllm.log")
    rig.engine = engine  # type: ignore[assignment]
    # The arena is there long before vLLM gets to mapping it.
    async with rig:
        await until(rig, lambda inventory: inventory.health == pb.ENGINE_HEALTH_READY)
        profile = await rig.stub.GetEngineProfile(pb.GetEngineProfileRequest())
        assert EngineProfile.from_json(profile.profile_json).max_cpu_loras == 3

        one, _ = await stage(rig.channel, source(tmp_path / "one", "team-a/sql", 1))
        two, _ = await stage(rig.channel, source(tmp_path / "two", "team-a/sql", 2))
        other, _ = await stage(rig.channel, source(tmp_path / "three", "team-b/chat", 3))
        loaded = await rig.load(one.digest)
        assert (loaded.tier, loaded.published) == (pb.TIER_GPU, True)
        await rig.load(other.digest, "team-b/chat", loader="device")
        base, first = await answer(rig, BASE), await answer(rig, "team-a/sql")
        assert base != first

        seen, texts = asyncio.Event(), []

        async def keep_asking() -> None:
            while not seen.is_set():
                texts.append(await answer(rig, "team-a/sql", 400))

        running = [asyncio.create_task(keep_asking()) for _ in range(4)]
        await until(rig, lambda i: any(a.in_flight for a in i.loaded))
        seen.set()
        switched = await rig.load(two.digest)
        assert switched.lora_int_id > loaded.lora_int_id
        await asyncio.gather(*running)
        for text in texts:
            assert text.startswith(first)
        second = await answer(rig, "team-a/sql")
        assert second not in (base, first)
        await until(rig, lambda i: one.digest not in {a.digest for a in i.loaded})

        instance = (await rig.inventory()).engine_instance
        restart = pb.RestartEngineRequest(engine_instance=instance)
        async with requests_run(rig):
            with pytest.raises(grpc.aio.AioRpcError, match=r"[1-4] requests are running"):
                await rig.stub.RestartEngine(restart)
        await rig.stub.RestartEngine(restart)
        assert await asyncio.to_thread(engine.process.wait, 120) == 0
        await until(rig, lambda i: i.health == pb.ENGINE_HEALTH_STARTING)
        await engine.start()
        await until(rig, lambda i: sum(a.published for a in i.loaded) == 2)
        inventory = await rig.inventory()
        assert inventory.engine_instance != instance
        assert await answer(rig, "team-a/sql") == second
        assert {s.digest for s in inventory.staged} == {one.digest, two.digest, other.digest}

        await rig.unload(drop_staged=True)
        with pytest.raises(httpx.HTTPStatusError, match="404"):
            await answer(rig, "team-a/sql")
        assert {s.digest for s in (await rig.inventory()).staged} == {other.digest}


async def test_a_real_engine_without_the_plugin_is_served_from_plain_files(
    volume: Path, tmp_path: Path
) -> None:
    model = make_dense(tmp_path / "model")
    rig = Rig(volume, refresh_seconds=0.5, drain_timeout_seconds=2)
    environ = {"LORAFLEET_VOLUME": "", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
    engine = RealEngine(volume, model, tmp_path / "vllm.log", **environ)
    rig.engine = engine  # type: ignore[assignment]
    async with rig:
        await until(rig, lambda inventory: inventory.health == pb.ENGINE_HEALTH_STOCK)
        inventory = await rig.inventory()
        assert inventory.base_model == BASE
        # The process's start time tells one engine from the next.
        assert float(inventory.engine_instance.removeprefix("stock-")) > 1e9
        one, _ = await stage(rig.channel, source(tmp_path / "one", "team-a/sql", 1))
        two, _ = await stage(rig.channel, source(tmp_path / "two", "team-a/sql", 2))
        loaded = await rig.load(one.digest)
        assert (loaded.loader, loaded.published) == ("stock", True)
        base, first = await answer(rig, BASE), await answer(rig, "team-a/sql")
        await rig.load(two.digest)
        second = await answer(rig, "team-a/sql")
        assert len({base, first, second}) == 3
        assert (await rig.inventory()).max_loras == 2
        await rig.unload(drop_staged=True)
        with pytest.raises(httpx.HTTPStatusError, match="404"):
            await answer(rig, "team-a/sql")
