"""A small HTTP server for probes and scrapes: GET, one request a connection, all of it bounded.

Whoever reaches the port may open any number of connections and say nothing, or read nothing of
the answer. There are never more than `MOST_CONNECTIONS`, and for a moment the `BACKLOG` of one turn of
the loop: a new one takes the place of the one on which nothing has moved for longest, so who asks and
reads is answered whatever the others do.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, unquote

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    Handler = Callable[[str, Mapping[str, list[str]]], Awaitable["Answer"]]

MOST_CONNECTIONS: Final = 512
MOST_ANSWERS: Final = 192
"""So many are answered at once: an answer in pieces has one of them in memory."""
MOST_HEAD_BYTES: Final = 16 << 10
REQUEST_SECONDS: Final = 5.0
"""For all of a request, however its bytes come."""
ANSWER_SECONDS: Final = 60.0
BACKLOG: Final = 128  # below both: so many are accepted in one turn of the loop
_REASONS: Final = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed",
                   500: "Internal Server Error", 503: "Service Unavailable"}  # fmt: skip
_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True)
class Answer:
    """What a handler returns; a `body` in pieces is sent as they come."""

    status: int
    body: bytes | AsyncIterator[bytes]
    content_type: str = "text/plain; charset=utf-8"


class _Refused(Exception):
    def __init__(self, status: int, line: str) -> None:
        super().__init__(line)
        self.answer = Answer(status, line.encode() + b"\n")


class PlainHttp:
    """Serves `handler(path, query)` at a bound socket, in the running event loop."""

    def __init__(self, listener: socket.socket, handler: Handler) -> None:
        self._listener = listener
        self._handler = handler
        self._server: asyncio.Server | None = None
        # By when something moved on them.
        self._open: dict[asyncio.StreamWriter, None] = {}
        self._answered: dict[asyncio.StreamWriter, None] = {}

    async def start(self) -> None:
        """Begin to serve."""
        self._server = await asyncio.start_server(
            self._serve, sock=self._listener, limit=MOST_HEAD_BYTES, backlog=BACKLOG
        )

    async def close(self) -> None:
        """Hang up on everybody and free the port."""
        if self._server is None:
            self._listener.close()
            return
        self._server.close()
        for writer in list(self._open):
            writer.transport.abort()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _admit(writer, self._open, MOST_CONNECTIONS)
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                answer = await self._ask(reader)
            _admit(writer, self._answered, MOST_ANSWERS)
            async with asyncio.timeout(ANSWER_SECONDS):
                async for piece in _pieces(await answer):
                    writer.write(piece)
                    await writer.drain()
                    _admit(writer, self._open, MOST_CONNECTIONS)
                    _admit(writer, self._answered, MOST_ANSWERS)
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError, EOFError):
            pass  # silent, slow or gone
        except Exception:
            _LOG.exception("an answer failed")
        finally:
            for known in (self._open, self._answered):
                known.pop(writer, None)
            writer.transport.abort()

    async def _ask(self, reader: asyncio.StreamReader) -> Awaitable[Answer]:
        """Read a request; return the answer that it is to get."""
        try:
            path, query = _parse(await reader.readuntil(b"\r\n\r\n"))
        except asyncio.LimitOverrunError:
            return _at_once(_Refused(400, f"a request has at most {MOST_HEAD_BYTES} bytes").answer)
        except _Refused as refused:
            return _at_once(refused.answer)
        return self._handler(path, query)


def _admit(
    writer: asyncio.StreamWriter, known: dict[asyncio.StreamWriter, None], most: int
) -> None:
    """Note that something moved; hang up on who has been still for longest if there are too many."""
    known.pop(writer, None)
    if len(known) >= most:
        next(iter(known)).transport.abort()
        del known[next(iter(known))]
    known[writer] = None


async def _at_once(answer: Answer) -> Answer:
    return answer


def _parse(head: bytes) -> tuple[str, dict[str, list[str]]]:
    parts = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1.") or not parts[1].startswith("/"):
        raise _Refused(400, "expected a request line of HTTP/1.1")
    if parts[0] != "GET":
        raise _Refused(405, "only GET")
    path, _, query = parts[1].partition("?")
    try:
        return unquote(path), parse_qs(query, max_num_fields=100)
    except ValueError:
        raise _Refused(400, "at most 100 fields in a query") from None


async def _pieces(answer: Answer) -> AsyncIterator[bytes]:
    body = answer.body
    lines = [
        f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(body)}" if isinstance(body, bytes) else "Transfer-Encoding: chunked",
        "Connection: close",
    ]
    head = "\r\n".join([*lines, "", ""]).encode("latin-1")
    if isinstance(body, bytes):
        yield head + body
        return
    yield head
    async for piece in body:
        if piece:
            yield b"%x\r\n%b\r\n" % (len(piece), piece)
    yield b"0\r\n\r\n"
