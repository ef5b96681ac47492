"""The sidecar's gRPC port under those who may not use it: others are served, memory and files bounded.

Every flood comes from a certificate of the same authority, that of an engine elsewhere: others do
not get beyond TLS (tests/contract/test_sidecar_tls.py).
"""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc.aio
import psutil
import pytest
from certificates import OPERATOR, Authority
from hostile_http2 import attack, attacks, crowd, hang_up
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from processes import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

MIB = 1 << 20
MOST_GROWTH = 160 * MIB
MOST_CONNECTIONS = 1024  # transfer_settings.SERVER_OPTIONS
POD = (("lorafleet-pod-uid", "pod-1"),)


@dataclass
class Port:
    """A sidecar in a process of its own, and somebody of the operator's who asks it all the time."""

    process: psutil.Process
    port: int
    metrics_port: int
    authority: Authority
    stranger: ssl.SSLContext
    asked: int = 0
    answered: int = 0

    def channel(self) -> grpc.aio.Channel:
        pair = self.authority.issue("operator", OPERATOR)
        credentials = grpc.ssl_channel_credentials(self.authority.certificate, *pair)
        return grpc.aio.secure_channel(
            f"127.0.0.1:{self.port}", credentials, options=(("grpc.use_local_subchannel_pool", 1),)
        )

    async def ask(self, channel: grpc.aio.Channel) -> None:
        method: Any = channel.unary_unary("/lorafleet.v1alpha1.SidecarService/ListAdapters")
        self.asked += 1
        answer = pb.ListAdaptersResponse.FromString(await method(b"", timeout=60))
        self.answered += answer.inventory.pod_uid == "pod-1"

    async def asks(self) -> None:
        async with self.channel() as channel:
            while True:
                await self.ask(channel)
                await asyncio.sleep(0.02)

    async def answers(self, more: int) -> None:
        """Wait until it has answered so many times more."""
        before = self.answered
        async with asyncio.timeout(60):
            while self.answered < before + more:
                await asyncio.sleep(0.01)

    async def settled(self, files: int) -> None:
        """Wait until the connections of others are gone."""
        async with asyncio.timeout(60):
            while self.process.num_fds() > files + 4:
                await asyncio.sleep(0.05)


@pytest.fixture
async def port(volume: Path) -> AsyncIterator[Port]:
    authority = Authority("fleet")
    authority.write(volume / "tls", "sidecar", "demo.engines.lorafleet")
    authority.write(volume / "stranger", "engine", "elsewhere.engines.lorafleet")
    stranger = ssl.create_default_context(cadata=authority.certificate.decode())
    stranger.load_cert_chain(volume / "stranger" / "tls.crt", volume / "stranger" / "tls.key")
    stranger.set_alpn_protocols(["h2"])
    ports = free_port(), free_port()
    (volume / "engine").mkdir()
    with (volume / "sidecar.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "lorafleet_sidecar", "serve"],
            stderr=log,
            env={
                **os.environ,
                "LORAFLEET_VOLUME": str(volume / "engine"),
                "LORAFLEET_ARENA_BYTES": "4Mi",
                "LORAFLEET_POD_UID": "pod-1",
                "LORAFLEET_TLS_DIR": str(volume / "tls"),
                "LORAFLEET_LISTEN": f"127.0.0.1:{ports[0]}",
                "LORAFLEET_METRICS_LISTEN": f"127.0.0.1:{ports[1]}",
                "LORAFLEET_ENGINE_URL": "http://127.0.0.1:1",
                "GRPC_VERBOSITY": "NONE",
            },
        )
    running = Port(psutil.Process(process.pid), *ports, authority, stranger)
    try:
        async with asyncio.timeout(60), running.channel() as channel:
            await channel.channel_ready()
            await running.ask(channel)
        yield running
    finally:
        process.kill()
        process.wait()


async def test_floods_of_every_kind_cost_others_no_answer(port: Port) -> None:
    work = asyncio.create_task(port.asks())
    files, memory = port.process.num_fds(), port.process.memory_info().rss
    sent = {}
    for name, writes in attacks().items():
        sent[name] = await attack(port.port, port.stranger, writes)
        await port.answers(3)
        assert not work.done(), (name, work)
        assert port.process.memory_info().rss < memory + MOST_GROWTH, name
    await port.settled(files)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    assert port.asked - port.answered <= 1, "but for the one that was asked as we stopped"
    assert all(sent.values()), sent
    async with port.channel() as channel:
        await port.ask(channel)


CROWDS = {
    "silent": b"",
    "half a hello of TLS": bytes.fromhex("1603010200010001fc0303") + bytes(40),
    "plaintext": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
}


async def test_ten_thousand_connections_are_bounded_and_end(port: Port) -> None:
    work = asyncio.create_task(port.asks())
    await port.answers(1)
    files, memory = port.process.num_fds(), port.process.memory_info().rss
    for opening in CROWDS.values():
        held = await crowd(port.port, 10_000 // len(CROWDS), opening)
        assert port.process.num_fds() < files + MOST_CONNECTIONS + 16
        hang_up(held)
    held = await crowd(port.port, 2000)  # these do not go by themselves
    assert not work.done(), "who is connected goes on"
    async with asyncio.timeout(60), port.channel() as channel:
        while True:  # nobody new is let in until the silent ones are hung up on
            try:
                await port.ask(channel)
                break
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.2)
    await port.settled(files)
    hang_up(held)
    assert port.process.memory_info().rss < memory + MOST_GROWTH
    await port.answers(3)
    assert not work.done()
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
