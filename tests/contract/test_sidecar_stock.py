"""Engines whose plugin is not live, and engines that can take no adapter at all."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
import pytest
from fake_engine import BASE, Behaviour
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from sidecar_rig import Rig
from staging_client import reason
from waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


async def health(rig: Rig, wanted: pb.EngineHealth) -> pb.Inventory:
    await until(lambda: rig.sidecar.agent.board.current.health == wanted)
    return await rig.inventory()


@pytest.fixture
async def stock(volume: Path) -> AsyncIterator[Rig]:
    async with Rig(volume, Behaviour(plugin=False), drain_timeout_seconds=1) as rig:
        await health(rig, pb.ENGINE_HEALTH_STOCK)
        yield rig


async def test_an_engine_without_the_plugin_is_served_through_plain_files(stock: Rig) -> None:
    digest = stock.put(1)
    loaded = await stock.load(digest)
    assert (loaded.published, loaded.tier, loaded.loader) == (True, pb.TIER_HOST, "stock")
    path = stock.volume / "plain" / digest.removeprefix("sha256:")
    assert stock.engine.stock["team-a/sql"].path == str(path)
    assert await stock.answer("team-a/sql") == digest[7:19]
    inventory = await stock.inventory()
    assert inventory.plugin_message == (
        "the lorafleet plugin is not loaded in the engine (nothing listens on run/engine.sock)"
    )
    assert inventory.base_model == BASE
    assert inventory.max_loras == 2


async def test_a_new_revision_replaces_the_old_one_and_frees_its_files(stock: Rig) -> None:
    one, two = stock.put(1), stock.put(2)
    await stock.load(one)
    await stock.load(two)
    assert await stock.answer("team-a/sql") == two[7:19]
    plain = stock.volume / "plain"
    await until(lambda: [each.name for each in plain.iterdir()] == [two.removeprefix("sha256:")])


async def test_a_refused_revision_gives_the_name_back_to_the_old_one(stock: Rig) -> None:
    one, two = stock.put(1), stock.put(2)
    await stock.load(one)
    stock.engine.behaviour.refuse[two] = "LoRA rank 16 is greater than max_lora_rank 8."
    with pytest.raises(grpc.aio.AioRpcError, match=r"team-a/sql: LoRA rank 16 is greater"):
        await stock.load(two)
    assert await stock.answer("team-a/sql") == one[7:19]


async def test_a_prepared_revision_is_only_written_out(stock: Rig) -> None:
    one, two = stock.put(1), stock.put(2)
    await stock.load(one)
    prepared = await stock.load(two, publish=False)
    assert (prepared.published, prepared.tier) == (False, pb.TIER_STAGED)
    assert await stock.answer("team-a/sql") == one[7:19]
    assert (await stock.load(two)).published


async def test_unloading_takes_name_and_files_away(stock: Rig) -> None:
    await stock.load(stock.put(1))
    await stock.unload(drop_staged=True)
    assert stock.engine.stock == {}
    await until(lambda: not list((stock.volume / "plain").iterdir()))


async def test_a_restarted_stock_engine_gets_its_adapters_back(stock: Rig) -> None:
    digest = stock.put(1)
    await stock.load(digest)
    first = (await stock.inventory()).engine_instance
    await stock.engine.kill()
    await until(lambda: stock.sidecar.agent.board.current.health == pb.ENGINE_HEALTH_STARTING)
    await stock.engine.start()
    await until(lambda: "team-a/sql" in stock.engine.stock)
    assert (await health(stock, pb.ENGINE_HEALTH_STOCK)).engine_instance != first
    assert await stock.answer("team-a/sql") == digest[7:19]


async def test_an_adapter_that_people_loaded_keeps_its_name(stock: Rig) -> None:
    digest = stock.put(1)
    path = await stock.sidecar.store.export_plain(digest)
    elsewhere = stock.volume / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "adapter_model.safetensors").write_bytes(
        (path / "adapter_model.safetensors").read_bytes()
    )
    await stock.sidecar.agent.engine.api.load("team-a/sql", elsewhere)
    with pytest.raises(grpc.aio.AioRpcError, match="loaded into the engine by someone else"):
        await stock.load(digest)
    await asyncio.sleep(0.1)
    assert stock.engine.stock["team-a/sql"].path == str(elsewhere)
    assert not (await stock.inventory()).loaded


async def test_a_plugin_that_switched_itself_off_says_why(volume: Path) -> None:
    why = "vLLM 0.99.0 is not supported by lorafleet 0.1.0 (supported: 0.26 to 0.33)"
    async with Rig(volume, Behaviour(compat=why)) as rig:
        inventory = await health(rig, pb.ENGINE_HEALTH_STOCK)
        assert inventory.plugin_message == why
        assert (await rig.load(rig.put(1))).loader == "stock"


@pytest.mark.parametrize(
    ("behaviour", "line"),
    [
        (Behaviour(lora_enabled=False), "engine runs without --enable-lora"),
        (Behaviour(lora_enabled=False, plugin=False), "engine runs without --enable-lora"),
        (
            Behaviour(api_servers=2),
            "engine runs 2 API servers; runtime LoRA updates reach only one",
        ),
        (
            Behaviour(api_key="secret"),
            "engine answered 401: set the engine's API key for the sidecar "
            "(LORAFLEET_ENGINE_API_KEY_FILE)",
        ),
        (
            Behaviour(api_key="secret", plugin=False),
            "engine answered 401: set the engine's API key for the sidecar "
            "(LORAFLEET_ENGINE_API_KEY_FILE)",
        ),
        (
            Behaviour(plugin=False, runtime_updates=False),
            "engine has no /v1/load_lora_adapter (VLLM_ALLOW_RUNTIME_LORA_UPDATING is not set)",
        ),
    ],
)
async def test_an_engine_that_can_take_no_adapter_is_refused_with_the_reason(
    volume: Path, behaviour: Behaviour, line: str
) -> None:
    async with Rig(volume, behaviour) as rig:
        inventory = await health(rig, pb.ENGINE_HEALTH_REFUSED)
        assert inventory.health_message == line
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await rig.load(rig.put(1))
        assert failure.value.details() == line
        assert reason(failure.value) == "EngineRejected"
        assert rig.engine.loads == []


async def test_a_key_that_arrives_later_is_taken_up(volume: Path) -> None:
    key = volume / "key"
    key.write_text("old\n")
    async with Rig(volume, Behaviour(api_key="secret"), engine_api_key_file=key) as rig:
        await health(rig, pb.ENGINE_HEALTH_REFUSED)
        key.write_text("secret\n")
        await health(rig, pb.ENGINE_HEALTH_READY)
        assert (await rig.load(rig.put(1))).published


async def test_a_plugin_whose_socket_comes_late_is_waited_for(volume: Path) -> None:
    async with Rig(volume, Behaviour(plugin=False)) as rig:
        rig.sidecar.agent.engine._grace = 60.0
        await until(lambda: "waiting for its plugin" in rig.sidecar.agent.observed.message)
        assert (await rig.inventory()).health == pb.ENGINE_HEALTH_STARTING
