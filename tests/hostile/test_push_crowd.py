"""The push service under floods: an honest trainer is served meanwhile, memory and disk bounded."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import grpc.aio
import psutil
import pytest
from hostile_http2 import attack, attacks, crowd, hang_up
from lorafleet.v1alpha1 import push_pb2 as pb
from lorafleet.v1alpha1 import push_pb2_grpc as pb_grpc
from pushing import Content, Trainer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MIB = 1 << 20
TESTS = Path(__file__).parents[1]


@dataclass
class Port:
    """A push service in a process of its own, and an honest trainer."""

    process: psutil.Process
    address: str
    root: Path
    pushed: int = 0

    @property
    def memory(self) -> int:
        return int(self.process.memory_info().rss)

    @property
    def peak(self) -> int:
        """The most memory that it ever had, in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        return int(found.split()[1]) << 10

    def trainer(self, token: str = "good", name: str = "honest") -> Trainer:
        return Trainer(self.address, token, "team-a", name)

    async def push(self) -> None:
        """Push once, again if the port lets nobody new in for a while."""
        for _ in range(120):
            try:
                await self.trainer().push(Content.of(self.pushed % 256, 1), self.pushed)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                await asyncio.sleep(0.5)
            else:
                self.pushed += 1
                return
        raise AssertionError("nobody is let in any more")


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[Port]:
    root = tmp_path / "pushed"
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, TESTS / "push_door.py", root],
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "GRPC_VERBOSITY": "NONE"},
        )
    assert process.stdout is not None
    number = (await asyncio.to_thread(process.stdout.readline)).decode().strip()
    made = Port(psutil.Process(process.pid), f"127.0.0.1:{number}", root)
    try:
        for _ in range(5):
            await made.push()
        yield made
    finally:
        process.kill()
        process.communicate()


def tiny_tensors(count: int) -> pb.PushManifest:
    """A manifest that takes as much memory as one can once it is read."""
    entries = {
        f"{n:0100x}": {"dtype": "U8", "shape": [1], "data_offsets": [n, n + 1]}
        for n in range(count)
    }
    text = json.dumps(entries, separators=(",", ":")).encode()
    return pb.PushManifest(
        namespace="team-a",
        name="hostile",
        base_model="tiny/simulated",
        pool="pool",
        adapter_config=Content.of(1, 2).config,
        safetensors_header=text,
        tensor_digests=[n.to_bytes(32, "big") for n in range(count)],
    )


async def flood(port: Port, token: str, count: int, manifest: pb.PushManifest) -> None:
    """Begin so many pushes with this manifest, each on a connection of its own, and let them be.

    In `token` the number of a namespace may stand as {}."""
    held = [port.trainer().channel() for _ in range(count)]

    async def one(number: int) -> None:
        mine_is = port.trainer(token.format(number % 10))
        call = pb_grpc.PushServiceStub(held[number]).Push(metadata=mine_is.metadata, timeout=20)
        mine = pb.PushManifest()
        mine.CopyFrom(manifest)
        mine.name = f"hostile-{number}"
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await call.write(pb.PushRequest(manifest=mine))
            await call.read()
            await call.read()

    flooding = [asyncio.create_task(one(n)) for n in range(count)]
    await port.push()
    await asyncio.wait(flooding, timeout=25)
    for each in held:
        await each.close()
    await asyncio.gather(*flooding, return_exceptions=True)


async def test_large_messages_of_strangers_are_not_taken(port: Port) -> None:
    before = port.memory
    manifest = pb.PushManifest(namespace="team-a", adapter_config=bytes(19 * MIB))
    await flood(port, "stranger", 60, manifest)
    assert port.peak < before + 32 * MIB
    assert not list(port.root.rglob("hostile*"))


async def test_large_requests_of_who_may_push_are_taken_a_few_at_a_time(port: Port) -> None:
    before, trainer = port.memory, port.trainer()
    request = pb.WatchPushRequest(namespace="n" * (15 * MIB), name="honest")
    held = [trainer.channel() for _ in range(60)]
    calls = [
        pb_grpc.PushServiceStub(each).WatchPush(request, metadata=trainer.metadata) for each in held
    ]
    await port.push()
    codes = await asyncio.gather(*(call.code() for call in calls), return_exceptions=True)
    for each in held:
        await each.close()
    await port.push()
    assert grpc.StatusCode.INVALID_ARGUMENT in codes
    assert grpc.StatusCode.OK not in codes
    assert port.peak < before + 320 * MIB


async def test_large_manifests_that_are_refused_are_not_kept(port: Port) -> None:
    before = port.memory
    manifest = pb.PushManifest(namespace="team-a", adapter_config=bytes(19 * MIB))
    await flood(port, "good-{}", 60, manifest)
    assert port.peak < before + 320 * MIB


async def test_manifests_of_countless_tensors_take_bounded_memory(port: Port) -> None:
    before = port.memory
    await flood(port, "good-{}", 30, tiny_tensors(100_000))
    await port.push()
    assert port.peak < before + 720 * MIB
    assert {each.name for each in (port.root / "team-a").iterdir()} >= {"honest"}


async def test_floods_of_http2_cost_the_honest_nothing(port: Port) -> None:
    files, memory = port.process.num_fds(), port.memory
    number = int(port.address.rpartition(":")[2])
    for name, writes in attacks().items():
        await attack(number, None, writes)
        await port.push()
        assert port.memory < memory + 200 * MIB, name
    held = await crowd(number, 3000)
    assert port.process.num_fds() < files + 1024 + 64
    hang_up(held)
    await port.push()
    async with asyncio.timeout(60):
        while port.process.num_fds() > files + 16:
            await asyncio.sleep(0.1)
