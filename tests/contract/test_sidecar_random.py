"""Random lives of three names with restarts in between: it always ends where it was told to."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import grpc
import pytest
from fake_engine import Behaviour
from sidecar_rig import Rig
from waiting import until

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ["team-a/one", "team-a/two", "team-b/three"]
STEPS = 40


class Life:
    """Drives a rig at random and keeps book of what was accepted."""

    def __init__(self, rig: Rig, seed: int) -> None:
        self.rig = rig
        self.random = random.Random(seed)
        self.digests = [rig.put(number) for number in range(5)]
        self.served: dict[str, str] = {}
        self.prepared: dict[str, str] = {}

    async def step(self) -> None:
        kinds = [self.load] * 5 + [self.prepare] * 2 + [self.unload] * 2
        kinds += [self.hold, self.release, self.restart_engine, self.restart_sidecar]
        await self.random.choice(kinds)()

    async def load(self) -> None:
        name, digest = self.random.choice(NAMES), self.random.choice(self.digests)
        try:
            await self.rig.load(digest, name, drain_timeout_seconds=1)
        except grpc.aio.AioRpcError:
            return  # the engine is away: nothing was accepted
        self.served[name] = digest
        self.prepared.pop(name, None)

    async def prepare(self) -> None:
        name, digest = self.random.choice(NAMES), self.random.choice(self.digests)
        try:
            await self.rig.load(digest, name, publish=False, drain_timeout_seconds=1)
        except grpc.aio.AioRpcError:
            return
        if self.served.get(name) != digest:
            self.prepared[name] = digest

    async def unload(self) -> None:
        name = self.random.choice(NAMES)
        await asyncio.gather(self.rig.unload(name, drain_timeout_seconds=1), return_exceptions=True)
        self.served.pop(name, None)
        self.prepared.pop(name, None)

    async def hold(self) -> None:
        if self.rig.engine.alive and self.rig.engine.served:
            await self.rig.held_request(self.random.choice(sorted(self.rig.engine.served)))

    async def release(self) -> None:
        self.rig.engine.release()

    async def restart_engine(self) -> None:
        if self.rig.engine.alive:
            await self.rig.engine.kill()
        else:
            await self.rig.engine.start()

    async def restart_sidecar(self) -> None:
        await self.rig.stop_sidecar()
        await self.rig.start_sidecar()

    def settled(self) -> bool:
        engine = self.rig.engine
        served = {name: engine.revisions[i].digest for name, i in engine.served.items()}
        loaded = sorted((each.served_name, each.digest) for each in engine.revisions.values())
        wanted = sorted([*self.served.items(), *self.prepared.items()])
        held = {each.digest for each in self.rig.sidecar.store.revisions() if each.in_use}
        return served == self.served and loaded == wanted and held == {d for _, d in wanted}


@pytest.mark.parametrize("seed", range(6))
async def test_names_end_where_the_last_accepted_request_put_them(volume: Path, seed: int) -> None:
    async with Rig(volume, Behaviour(max_cpu_loras=2)) as rig:
        life = Life(rig, seed)
        for _ in range(STEPS):
            await life.step()
        rig.engine.release()
        if not rig.engine.alive:
            await rig.engine.start()
        await until(life.settled)
        for name, digest in life.served.items():
            assert await rig.answer(name) == digest[7:19]
        assert not rig.sidecar.agent.desired.deaths
