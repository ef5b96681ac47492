"""The plugin's control socket under those who may open it (tests/engine has it in a real vLLM)."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from lorafleet_vllm import control_connections, control_server
from lorafleet_vllm.control_connections import MOST_CONNECTIONS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

HEAD = b"POST /v1/echo HTTP/1.1\r\nHost: x\r\nContent-Length: 30\r\n"
OPENINGS = [b"", HEAD, HEAD + b"\r\n{", b"\xff" * 512, b"GET / HTTP/1.1\r\nX: " + b"x" * 60_000]


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the body; `slow` in it waits for half a second first."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body += message.get("body", b"")
        more = message.get("more_body", False)
    if b"slow" in body:
        await asyncio.sleep(0.5)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
async def path(volume: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Path]:
    monkeypatch.setattr(control_connections, "REQUEST_SECONDS", 0.5)
    found = volume / "run" / "engine.sock"
    serving = asyncio.create_task(control_server.serve(echo, found))
    while not found.exists():
        await asyncio.sleep(0.01)
    yield found
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


def client(path: Path) -> httpx.AsyncClient:
    transport = httpx.AsyncHTTPTransport(uds=str(path))
    return httpx.AsyncClient(transport=transport, base_url="http://engine", timeout=60)


async def test_connections_that_say_nothing_or_half_of_it_cost_others_no_answer(path: Path) -> None:
    held = []
    async with client(path) as asking:
        for number in range(6 * MOST_CONNECTIONS):
            reader, writer = await asyncio.open_unix_connection(str(path))
            writer.write(OPENINGS[number % len(OPENINGS)])
            held.append((reader, writer))
            if number % 20 == 0:
                body = {"number": number}
                assert (await asking.post("/", json=body)).json() == body
                known = len(control_connections._waiting) + len(control_connections._answering)
                assert known <= MOST_CONNECTIONS
        async with asyncio.timeout(60):
            for reader, writer in held:
                with contextlib.suppress(OSError):
                    await reader.read(-1)  # each is hung up on
                writer.close()
        body = {"after": True}
        assert (await asking.post("/", json=body)).json() == body


async def test_answers_that_take_their_time_are_waited_for(path: Path) -> None:
    """A load takes minutes; what is bounded is the request, on each connection, each time."""
    async with client(path) as asking:
        answers = await asyncio.gather(*(asking.post("/", content=b"slow") for _ in range(20)))
        assert {answer.content for answer in answers} == {b"slow"}
        for _ in range(3):  # the same connection, idle for longer than a request may take
            assert (await asking.post("/", content=b"slow again")).content == b"slow again"
            await asyncio.sleep(0.6)


async def test_two_requests_at_once_on_one_connection_are_both_answered(path: Path) -> None:
    reader, writer = await asyncio.open_unix_connection(str(path))
    body = json.dumps({"a": 1}).encode()
    request = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    writer.write(request * 2)
    async with asyncio.timeout(60):
        answers = b""
        while answers.count(body) < 2:
            answers += await reader.read(65536)
    assert answers.count(b"200 OK") == 2
    writer.close()
