"""Many transfers at once, and clients that vanish at any moment: the accounting stays exact."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import grpc.aio
from lorafleet import frames
from lorafleet_sidecar.transfer_service import TransferSettings
from staging_builders import SourceAdapter, source_adapter
from staging_client import SERVICE, StageCall, reason, stage
from staging_fixtures import nothing_left, open_files, reserved, sidecar
from staging_server import Serving, serving

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["sidecar"]  # a fixture


async def test_two_hundred_at_once_end_well_or_are_told_that_there_is_no_room(
    sidecar: Serving, volume: Path
) -> None:
    files = open_files(volume)

    async def one(adapter: SourceAdapter) -> str:
        try:
            return (await stage(sidecar.channel, adapter))[0].digest
        except grpc.aio.AioRpcError as error:
            return reason(error)

    adapters = [source_adapter(seed, rank=1) for seed in range(200)]
    outcomes = await asyncio.gather(*(one(adapter) for adapter in adapters))
    staged = {outcome for outcome in outcomes if outcome.startswith("sha256:")}
    assert set(outcomes) - staged <= {"StagingFull"}
    assert {info.digest for info in sidecar.store.revisions()} <= staged
    await nothing_left(sidecar, files)


async def test_clients_that_vanish_two_hundred_times_leave_nothing_behind(volume: Path) -> None:
    chance = random.Random(7)
    adapters = [source_adapter(seed) for seed in range(4)]
    async with serving(volume, settings=TransferSettings(resume_seconds=1)) as running:
        files = open_files(volume)

        async def transfer(adapter: SourceAdapter, calls: list[Any]) -> None:
            call = StageCall(running.channel)
            calls.append(call.call)
            answer = await call.manifest(adapter.manifest())
            cuts = adapter.cuts()
            chunks = [adapter.chunk(*cuts[i]) for i in answer.accepted.missing_chunks]
            if chance.random() < 0.5:
                for chunk in chunks:
                    await call.chunk(*chunk)
            else:
                channel: Any = running.channel
                stripe = channel.stream_unary(SERVICE + "SendChunks")()
                calls.append(stripe)
                await stripe.write(frames.encode_staging_id(answer.accepted.staging_id))
                for chunk in chunks:
                    await stripe.write(frames.encode_chunk(*chunk, frames.SEND_CHUNK_FIELD))
                await stripe.done_writing()
                await stripe
            await call.commit()

        async def vanish() -> None:
            calls: list[Any] = []
            task = asyncio.create_task(transfer(chance.choice(adapters), calls))
            await asyncio.sleep(chance.random() * 0.02)
            for call in calls:
                call.cancel()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            for info in running.store.revisions():
                running.store.drop(info.digest)

        for _ in range(20):
            await asyncio.gather(*(vanish() for _ in range(10)))
            reserved(running)  # asserts that the sums agree
        await nothing_left(running, files)
        for adapter in adapters:
            await stage(running.channel, adapter)
        assert len(running.store.revisions()) == len(adapters)


async def test_a_second_commit_and_what_follows_it_change_nothing(sidecar: Serving) -> None:
    adapter = source_adapter(1)
    call = StageCall(sidecar.channel)
    await call.manifest(adapter.manifest())
    for cut in adapter.cuts():
        await call.chunk(*adapter.chunk(*cut))
    revision = await call.commit()
    for message in (frames.encode_commit(), frames.encode_chunk(*adapter.chunk(0, 64 << 10))):
        try:
            await call.raw(message)
        except grpc.aio.AioRpcError:
            break
    assert [info.digest for info in sidecar.store.revisions()] == [revision.digest]
    assert reserved(sidecar) == 0


async def test_bytes_that_are_no_rpc_at_all_harm_nobody(sidecar: Serving) -> None:
    noise = random.Random(1)
    for _ in range(50):
        reader, writer = await asyncio.open_connection("127.0.0.1", sidecar.port)
        writer.write(noise.randbytes(4096))
        writer.close()
        await asyncio.gather(reader.read(), writer.wait_closed(), return_exceptions=True)
    await stage(sidecar.channel, source_adapter(1))
    assert len(sidecar.store.revisions()) == 1
