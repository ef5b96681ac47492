"""An engine that was taken over answers without end, or with a bomb: its sidecar stays as it is."""

from __future__ import annotations

import asyncio
import gzip
from typing import TYPE_CHECKING

import httpx
import pytest
from lorafleet.errors import EngineRejected
from lorafleet_sidecar import engine_answers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Answering = Callable[[asyncio.StreamWriter], Awaitable[None]]

BOMB = gzip.compress(bytes(64 << 20), 1)
HEAD = b"HTTP/1.1 200 OK\r\nConnection: close\r\n"


async def endless(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + b"\r\n")
    while not writer.is_closing():
        writer.write(b" " * (1 << 20))
        await writer.drain()


async def bomb(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(BOMB))
    writer.write(BOMB)


async def small(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + b"Content-Length: 9\r\n\r\n" + b'{"a": 1}\n')


@pytest.fixture
async def engine() -> AsyncIterator[Callable[[Answering], Awaitable[httpx.AsyncClient]]]:
    opened: list[asyncio.Server | httpx.AsyncClient] = []

    async def serve(answer: Answering) -> httpx.AsyncClient:
        async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await reader.readuntil(b"\r\n\r\n")
                await answer(writer)
            except OSError:
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(one, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False)
        opened.extend((client, server))
        return client

    yield serve
    for each in opened:
        if isinstance(each, httpx.AsyncClient):
            await each.aclose()
        else:
            each.close()
            await each.wait_closed()


async def test_an_answer_without_an_end_is_refused(
    engine: Callable[[Answering], Awaitable[httpx.AsyncClient]],
) -> None:
    client = await engine(endless)
    with pytest.raises(EngineRejected, match="/v1/state has more than 33554432 bytes"):
        await engine_answers.ask(client, "GET", "/v1/state")


async def test_a_bomb_is_not_unpacked(
    engine: Callable[[Answering], Awaitable[httpx.AsyncClient]],
) -> None:
    client = await engine(bomb)
    answer = await engine_answers.ask(client, "GET", "/v1/state")
    assert answer.content == BOMB
    with pytest.raises(ValueError):
        answer.json()


async def test_an_ordinary_answer_is_what_it_was(
    engine: Callable[[Answering], Awaitable[httpx.AsyncClient]],
) -> None:
    client = await engine(small)
    answer = await engine_answers.ask(client, "GET", "/v1/state")
    assert (answer.status_code, answer.json()) == (200, {"a": 1})
