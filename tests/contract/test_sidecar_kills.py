"""kill -9 of the sidecar at each named step: the next one finishes the job without anybody."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING, Self

import grpc
import grpc.aio
import pytest
from fake_engine import FakeEngine
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from lorafleet.v1alpha1 import sidecar_pb2_grpc as pb_grpc
from lorafleet_sidecar.crashpoint import VARIABLE
from lorafleet_sidecar.store import RevisionStore
from processes import free_port
from sidecar_rig import ARENA_BYTES, put_revision
from waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

SWITCH = ["load.held", "load.loaded", "load.verified", "switch.published", "switch.probed"]
SWITCH += ["switch.unloaded_previous"]
UNLOAD = ["unload.unpublished", "unload.unloaded"]
NAME = "team-a/sql"


class SidecarProcess:
    """`lorafleet-sidecar serve` as a process of its own."""

    def __init__(self, volume: Path, engine: FakeEngine) -> None:
        self._address = f"127.0.0.1:{free_port()}"
        self._environ = {
            **os.environ,
            "LORAFLEET_VOLUME": str(volume),
            "LORAFLEET_ARENA_BYTES": str(ARENA_BYTES),
            "LORAFLEET_LISTEN": self._address,
            "LORAFLEET_METRICS_LISTEN": "",
            "LORAFLEET_ENGINE_URL": engine.url,
            "LORAFLEET_REFRESH_SECONDS": "0.05",
        }

    async def start(self, crash_at: str | None = None) -> Self:
        """Start it and wait until it answers."""
        environ = self._environ | ({VARIABLE: crash_at} if crash_at else {})
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "lorafleet_sidecar", "serve", env=environ,
            stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        self.channel = grpc.aio.insecure_channel(
            self._address,
            [
                ("grpc.initial_reconnect_backoff_ms", 50),
                ("grpc.max_reconnect_backoff_ms", 200),
                ("grpc.min_reconnect_backoff_ms", 50),
            ],
        )
        self.stub = pb_grpc.SidecarServiceStub(self.channel)  # type: ignore[no-untyped-call]
        await self.stub.ListAdapters(pb.ListAdaptersRequest(), wait_for_ready=True, timeout=60)
        return self

    async def ended(self) -> int:
        """Wait for its end; return the exit status."""
        await self.channel.close()
        return await asyncio.wait_for(self.process.wait(), 60)

    async def stop(self) -> int:
        """Ask it to end, as the kubelet does."""
        self.process.terminate()
        return await self.ended()

    async def inventory(self) -> pb.Inventory:
        """Call ListAdapters."""
        return (await self.stub.ListAdapters(pb.ListAdaptersRequest())).inventory


@pytest.fixture
async def engine(volume: Path) -> AsyncIterator[FakeEngine]:
    engine = await FakeEngine(volume).start()
    yield engine
    await engine.kill()


def load(digest: str, name: str = NAME) -> pb.LoadAdapterRequest:
    return pb.LoadAdapterRequest(
        adapter=name, served_name=name, digest=digest, loader="direct", publish=True
    )


def staged(volume: Path, *seeds: int) -> list[str]:
    store = RevisionStore.open(volume, ARENA_BYTES)
    digests = [put_revision(store, seed) for seed in seeds]
    store.close()
    return digests


@pytest.mark.parametrize("step", SWITCH)
async def test_a_sidecar_killed_during_a_switch_finishes_it_after_its_restart(
    volume: Path, engine: FakeEngine, step: str
) -> None:
    one, two, other = staged(volume, 1, 2, 3)
    sidecar = await SidecarProcess(volume, engine).start()
    await sidecar.stub.LoadAdapter(load(one))
    await sidecar.stub.LoadAdapter(load(other, "team-b/chat"))
    assert await sidecar.stop() == 0

    await sidecar.start(crash_at=step)
    with pytest.raises(grpc.aio.AioRpcError):
        await sidecar.stub.LoadAdapter(load(two))
    assert await sidecar.ended() == -signal.SIGKILL
    assert "team-b/chat" in engine.served

    await sidecar.start()
    await until(
        lambda: sorted(each.digest for each in engine.revisions.values()) == sorted([two, other])
    )
    assert engine.revisions[engine.served[NAME]].digest == two
    assert engine.loads.count((NAME, two)) == 1
    assert engine.loads.count(("team-b/chat", other)) == 1
    loaded = (await sidecar.stub.LoadAdapter(load(two))).loaded  # what an operator does next
    assert loaded.published
    assert engine.loads.count((NAME, two)) == 1
    assert {each.digest for each in (await sidecar.inventory()).staged} == {one, two, other}
    assert await sidecar.stop() == 0


@pytest.mark.parametrize("step", UNLOAD)
async def test_a_sidecar_killed_during_an_unload_finishes_it_after_its_restart(
    volume: Path, engine: FakeEngine, step: str
) -> None:
    one, other = staged(volume, 1, 3)
    sidecar = await SidecarProcess(volume, engine).start(crash_at=step)
    await sidecar.stub.LoadAdapter(load(one))
    await sidecar.stub.LoadAdapter(load(other, "team-b/chat"))
    with pytest.raises(grpc.aio.AioRpcError):
        await sidecar.stub.UnloadAdapter(pb.UnloadAdapterRequest(adapter=NAME, served_name=NAME))
    assert await sidecar.ended() == -signal.SIGKILL

    await sidecar.start()
    await until(lambda: [each.digest for each in engine.revisions.values()] == [other])
    assert list(engine.served) == ["team-b/chat"]
    assert engine.loads == [(NAME, one), ("team-b/chat", other)]
    await sidecar.stub.UnloadAdapter(pb.UnloadAdapterRequest(adapter=NAME, served_name=NAME))
    assert await sidecar.stop() == 0


async def test_sidecar_and_engine_killed_together_come_back_together(
    volume: Path, engine: FakeEngine
) -> None:
    (one,) = staged(volume, 1)
    sidecar = await SidecarProcess(volume, engine).start()
    await sidecar.stub.LoadAdapter(load(one))
    sidecar.process.kill()
    await sidecar.ended()
    await engine.kill()
    await engine.start()
    await sidecar.start()
    await until(lambda: engine.served and engine.revisions)
    assert engine.revisions[engine.served[NAME]].digest == one
    assert await sidecar.stop() == 0


async def test_a_watched_sidecar_ends_quickly_when_it_is_asked_to(
    volume: Path, engine: FakeEngine
) -> None:
    sidecar = await SidecarProcess(volume, engine).start()
    stream = sidecar.stub.WatchEngine(pb.WatchEngineRequest())
    assert (await stream.read()).inventory.health == pb.ENGINE_HEALTH_READY
    assert await sidecar.stop() == 0
