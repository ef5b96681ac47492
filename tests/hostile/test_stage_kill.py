"""kill -9 at every step of a transfer: the next sidecar goes on from what is there.

The sidecar runs as a process of its own and kills itself at a named step (crashpoint.py).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import grpc.aio
import pytest
from lorafleet_sidecar.transfer_service import TransferSettings
from staging_builders import changed, digests, source_adapter
from staging_client import StageCall, send_stripe, stage
from staging_server import LIMIT, Serving, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SERVER = Path(__file__).parents[1] / "staging_server.py"
ADAPTER = source_adapter(1)
CUTS = ADAPTER.cuts()
COUNT = len(CUTS)

# Where the sidecar dies -> how many chunks must be sent again.
STEPS = {
    "stage.reserved": COUNT,
    "stage.chunk": COUNT - 1,
    f"stage.chunk:{COUNT // 2}": COUNT - COUNT // 2,
    f"stage.chunk:{COUNT}": 0,
    "stage.verified": 0,
    "stage.revision_written": 0,
    "stage.committed": 0,
}


@asynccontextmanager
async def sidecar_process(
    volume: Path, crash_at: str, receivers: int = 0
) -> AsyncIterator[tuple[asyncio.subprocess.Process, grpc.aio.Channel]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(SERVER), str(volume), str(LIMIT), str(receivers),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "LORAFLEET_CRASH_AT": crash_at, "PYTHONPATH": str(SERVER.parent)},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        port = int(await asyncio.wait_for(process.stdout.readline(), 60))
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield process, channel
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def assert_exact(sidecar: Serving) -> None:
    """Nothing but one committed revision takes space, and no directory is left over."""
    [revision] = sidecar.store.revisions()
    [extent] = sidecar.store.extents()
    usage = sidecar.store.usage()
    assert (usage.used, usage.reserved) == (revision.size_bytes, 0)
    assert extent.size == revision.size_bytes
    volume = sidecar.store.volume
    assert list((volume / "staging").iterdir()) == []
    assert [path.name for path in (volume / "revisions").iterdir()] == [
        revision.digest.removeprefix("sha256:")
    ]


@pytest.mark.parametrize("step", STEPS)
async def test_after_a_kill_only_missing_chunks_are_sent_again(volume: Path, step: str) -> None:
    async with sidecar_process(volume, step) as (process, channel):
        with pytest.raises(grpc.aio.AioRpcError):
            await stage(channel, ADAPTER)
        assert await asyncio.wait_for(process.wait(), 60) == -signal.SIGKILL
    async with serving(volume) as sidecar:
        revision, sent = await stage(sidecar.channel, ADAPTER)
        assert len(sent) == STEPS[step]
        assert_exact(sidecar)
        again, sent = await stage(sidecar.channel, ADAPTER)
        assert (again, sent) == (revision, [])


NEWER = changed(ADAPTER, [0, 4])
# Where it dies while it copies what an earlier revision has -> what must be sent without that one.
COPYING = {
    "reuse.copied": COUNT,
    f"reuse.copied:{len(digests(ADAPTER))}": COUNT,
    "reuse.noted": 2,
    "stage.chunk": 1,
    "stage.verified": 0,
    "stage.committed": 0,
}


@pytest.mark.parametrize("step", COPYING)
async def test_after_a_kill_no_chunk_counts_that_was_not_copied(volume: Path, step: str) -> None:
    one, other = volume / "one", volume / "other"
    one.mkdir()
    other.mkdir()
    named = {"tensor_digests": digests(NEWER)}
    async with serving(one) as sidecar:
        base, _ = await stage(sidecar.channel, ADAPTER, tensor_digests=digests(ADAPTER))
    async with sidecar_process(one, step) as (process, channel):
        with pytest.raises(grpc.aio.AioRpcError):
            await stage(channel, NEWER, **named)
        assert await asyncio.wait_for(process.wait(), 60) == -signal.SIGKILL
    async with serving(one) as sidecar, serving(other) as whole:
        assert sidecar.store.drop(base.digest)
        revision, sent = await stage(sidecar.channel, NEWER, **named)
        assert len(sent) == COPYING[step]
        assert_exact(sidecar)
        assert (await stage(whole.channel, NEWER))[0] == revision
        with sidecar.store.lent(revision.digest) as a, whole.store.lent(revision.digest) as b:
            assert a == b


async def test_two_kills_of_one_transfer_lose_nothing(volume: Path) -> None:
    for step in ("stage.chunk:2", "stage.chunk:1"):
        async with sidecar_process(volume, step) as (process, channel):
            with pytest.raises(grpc.aio.AioRpcError):
                await stage(channel, ADAPTER)
            await asyncio.wait_for(process.wait(), 60)
    async with serving(volume) as sidecar:
        _, sent = await stage(sidecar.channel, ADAPTER)
        assert len(sent) == COUNT - 3
        assert_exact(sidecar)


async def test_receivers_die_with_their_sidecar_and_their_chunks_count(volume: Path) -> None:
    async with sidecar_process(volume, "stage.verified", receivers=2) as (process, channel):
        call = StageCall(channel)
        accepted = (await call.manifest(ADAPTER.manifest())).accepted
        assert len(accepted.receiver_ports) == 2
        assert len(set(accepted.receiver_ports)) == 2
        for at, port in enumerate(accepted.receiver_ports):
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as receiver:
                chunks = [ADAPTER.chunk(*cut) for cut in CUTS[at::2]]
                await send_stripe(receiver, accepted.staging_id, chunks)
        with pytest.raises(grpc.aio.AioRpcError):
            await call.commit()
        assert await asyncio.wait_for(process.wait(), 60) == -signal.SIGKILL
    for port in accepted.receiver_ports:
        await until_nobody_listens(port)
    async with serving(volume) as sidecar:
        _, sent = await stage(sidecar.channel, ADAPTER)
        assert sent == []
        assert_exact(sidecar)


async def test_a_receiver_that_is_killed_is_started_again(volume: Path) -> None:
    async with serving(volume, settings=TransferSettings(receivers=1)) as sidecar:
        call = StageCall(sidecar.channel)
        accepted = (await call.manifest(ADAPTER.manifest())).accepted
        [pid] = sidecar.service.receivers.pids()
        os.kill(pid, signal.SIGKILL)
        while sidecar.service.receivers.pids() == [pid] or not sidecar.service.receivers.ports():
            await asyncio.sleep(0.05)
        [port] = sidecar.service.receivers.ports()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as receiver:
            chunks = [ADAPTER.chunk(*cut) for cut in CUTS]
            received = await send_stripe(receiver, accepted.staging_id, chunks)
        assert received == len(ADAPTER.data)
        await call.commit()
        assert_exact(sidecar)


async def until_nobody_listens(port: int) -> None:
    for _ in range(600):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:
            return
        writer.close()
        await asyncio.sleep(0.05)
    pytest.fail(f"port {port} still answers")
