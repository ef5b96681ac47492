"""HTTP/1.1 as much as httpx needs, for fakes that must break in the middle of an answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

Body = dict[str, Any]
Answer = Callable[[str, str, Body, dict[str, str]], Awaitable[Any]]


class Refused(Exception):
    """An answer that is not 200."""

    def __init__(self, status: int, body: Body) -> None:
        super().__init__(body)
        self.status, self.body = status, body


async def serve_requests(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Answer
) -> None:
    """Answer the requests of one connection until the client leaves or `answer` is cancelled.

    `answer(method, path, body, headers)` returns text or a JSON value, or raises Refused.
    """
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            method, path, _ = head.split("\r\n")[0].split(" ")
            headers = {
                key.lower(): value
                for key, _, value in (line.partition(": ") for line in head.split("\r\n")[1:])
            }
            raw = await reader.readexactly(int(headers.get("content-length", "0")))
            try:
                content = await answer(method, path, json.loads(raw) if raw else {}, headers)
                status = 200
            except Refused as error:
                status, content = error.status, error.body
            data = (content if isinstance(content, str) else json.dumps(content)).encode()
            start = f"HTTP/1.1 {status} X\r\nContent-Length: {len(data)}\r\n\r\n"
            writer.write(start.encode() + data)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
        pass  # the client went away, or this server was killed
    finally:
        writer.close()
