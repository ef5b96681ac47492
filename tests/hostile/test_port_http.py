"""The ports for probes and scrapes, the operator's and the sidecar's: whoever asks at once is answered.

They speak without TLS to anybody who reaches them; a NetworkPolicy says who does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from hostile_http2 import crowd, hang_up
from lorafleet.plain_http import BACKLOG, MOST_CONNECTIONS
from processes import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS = Path(__file__).parents[1]
MOST_GROWTH = 128 << 20  # 192 answers, each with a piece of the text in memory
HEAD = b"GET /metrics HTTP/1.1\r\nHost: x\r\n"
GET = HEAD + b"\r\n"


@dataclass
class Port:
    """A program in a process of its own, and somebody who scrapes it all the time."""

    process: psutil.Process
    port: int
    asked: int = 0
    answered: int = 0

    async def get(self, request: bytes, seconds: float = 60) -> bytes:
        """Return all that is answered before the other side hangs up."""
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            try:
                writer.write(request)
                with contextlib.suppress(ConnectionError):
                    return await reader.read(-1)
                return b""
            finally:
                writer.transport.abort()

    async def asks(self) -> None:
        while True:
            self.asked += 1
            health = await self.get(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            scrape = await self.get(GET)
            well = health.startswith(b"HTTP/1.1 200 ") and scrape.startswith(b"HTTP/1.1 200 ")
            self.answered += well and b"# HELP lorafleet_" in scrape
            await asyncio.sleep(0.02)

    async def goes_on(self) -> None:
        """Wait until scrapes have been answered."""
        before = self.answered
        async with asyncio.timeout(60):
            while self.answered < before + 2:
                await asyncio.sleep(0.01)


@pytest.fixture(scope="module", params=["sidecar", "operator"])
def program(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[int, int]]:
    """The process id and the port of a program that lasts for all tests here."""
    number, volume = free_port(), tmp_path_factory.mktemp("volume")
    environ = {
        **os.environ,
        "PYTHONPATH": str(TESTS),
        "LORAFLEET_VOLUME": str(volume),
        "LORAFLEET_ARENA_BYTES": "4Mi",
        "LORAFLEET_LISTEN": "127.0.0.1:0",
        "LORAFLEET_METRICS_LISTEN": f"127.0.0.1:{number}",
        "LORAFLEET_ENGINE_URL": "http://127.0.0.1:1",
    }
    command = ["-m", "lorafleet_sidecar", "serve"]
    if request.param == "operator":
        command = [str(TESTS / "probes_server.py"), str(number)]
    with (volume / "program.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, *command], stderr=log, env=environ)
    try:
        yield process.pid, number
        assert b"Traceback" not in (volume / "program.log").read_bytes()
    finally:
        process.kill()
        process.wait()


@pytest.fixture
async def port(program: tuple[int, int]) -> Port:
    running = Port(psutil.Process(program[0]), program[1])
    async with asyncio.timeout(60):
        while not await answers(running):
            await asyncio.sleep(0.1)
    return running


async def answers(port: Port) -> bool:
    try:
        return b"# HELP" in await port.get(GET)
    except OSError:
        return False


OPENINGS = {
    "silent": b"",
    "half a head": HEAD,
    "noise": bytes(range(256)) * 8,
    "a hello of TLS": bytes.fromhex("1603010200010001fc0303") + bytes(40),
    "an endless head": HEAD + b"X-Fill: " + b"x" * (1 << 17),
    "reads nothing": GET,
}


async def test_ten_thousand_connections_cost_others_no_answer(port: Port) -> None:
    await port.get(GET)
    files, memory = port.process.num_fds(), port.process.memory_info().rss
    work, dripping = asyncio.create_task(port.asks()), asyncio.create_task(drop_by_drop(port))
    for opening in OPENINGS.values():
        held = await crowd(port.port, 500 if opening == GET else 1900, opening)
        await port.goes_on()
        assert not work.done()
        # Those that come in one turn of the loop are there before others are hung up on.
        assert port.process.num_fds() <= files + MOST_CONNECTIONS + BACKLOG + 8
        assert port.process.num_threads() < 30
        hang_up(held)
    assert port.process.memory_info().rss < memory + MOST_GROWTH
    async with asyncio.timeout(60):
        while port.process.num_fds() > files + 4:
            await asyncio.sleep(0.05)
    await asyncio.wait_for(dripping, 60)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    assert port.asked - port.answered <= 1


async def drop_by_drop(port: Port) -> None:
    """Send a head of which each byte comes in time and the whole does not, until hung up on."""
    _, writer = await asyncio.open_connection("127.0.0.1", port.port)
    with contextlib.suppress(OSError):
        while not writer.is_closing():
            writer.write(b"X")
            await writer.drain()
            await asyncio.sleep(0.05)
    writer.transport.abort()


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"GET http://a/ HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /metrics\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/2\r\n\r\n", b"400"),
        (b"\xff\xfe\r\n\r\n", b"400"),
        (b"GET /metrics?" + b"&".join([b"a=b"] * 200) + b" HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", b"400"),
        (b"GET /../../etc/passwd HTTP/1.1\r\n\r\n", b"404"),
        (b"GET /v1/load HTTP/1.1\r\n\r\n", b"404"),
        (b"GET /metrics HTTP/1.0\r\n\r\n", b"200"),
    ],
)
async def test_what_is_no_request_of_ours_gets_a_line(
    port: Port, request_: bytes, status: bytes
) -> None:
    answer = await port.get(request_)
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert answer.count(b"\n") < 8 or status == b"200"
