"""One version of one file behind HTTP, read by ranges.

Every answer is checked against what was opened: validator, total size, place of the range. A
broken read goes on where it broke. A server without ranges is read as one stream that moves
forward.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from lorafleet.errors import SourceChanged, SourceError, SourceNotFound, SourceUnavailable

from lorafleet_operator.sources.bounds import one_line
from lorafleet_operator.sources.validators import Part, Validator

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    import aiohttp

    from lorafleet_operator.sources.base import Buffer
    from lorafleet_operator.sources.bounds import SourceSettings
    from lorafleet_operator.sources.connection import Connection, Target

    Locate = Callable[[], Awaitable[Target]]
    Explain = Callable[[int, bytes, Mapping[str, str]], SourceError | None]
    """From status, start of the body and headers to what the provider makes of them."""

T = TypeVar("T")

HEAD_BYTES = 64 << 10
"""Bytes read on opening: header and config of small adapters come with the first request."""
_PROGRESS_BYTES = 64 << 10
_EXPLANATION_BYTES = 4 << 10
_MAX_BACKOFF_S = 8.0


@dataclass(frozen=True)
class Reach:
    """How the files of one source are reached: the same for all of them."""

    connection: Connection
    settings: SourceSettings
    explain: Explain
    on_read: Callable[[int], None]


class Filling:
    """A buffer being filled from the front; what has arrived stays when a try fails."""

    def __init__(self, length: int) -> None:
        self.buffer = bytearray(length)
        self.done = 0

    @property
    def missing(self) -> int:
        """Bytes still to come."""
        return len(self.buffer) - self.done

    def add(self, chunk: memoryview) -> int:
        """Take as much of `chunk` as is missing; return how much that was."""
        take = min(len(chunk), self.missing)
        self.buffer[self.done : self.done + take] = chunk[:take]
        self.done += take
        return take


class Stream:
    """The body of an answer, read forward; the next byte is byte `position` of the file."""

    def __init__(self, reach: Reach, response: aiohttp.ClientResponse, position: int) -> None:
        self.position = position
        self._reach = reach
        self._response = response
        self._rest = memoryview(b"")

    async def skip_to(self, position: int) -> None:
        """Discard bytes up to `position`."""
        while self.position < position:
            available = len(await self._available())
            self._take(min(available, position - self.position))

    async def fill(self, filling: Filling, end: int | None) -> None:
        """Put the next bytes into `filling` until it is full or the file's byte `end` is next."""
        while filling.missing and self.position != end:
            available = await self._available()
            self._take(filling.add(available))

    async def count_rest(self, limit: int) -> None:
        """Discard all that follows; `position` is the file's size then, or above `limit`."""
        while self.position <= limit:
            chunk = await self._reach.connection.next_bytes(self._response)
            if not chunk:
                return
            self._reach.on_read(len(chunk))
            self.position += len(chunk)

    def close(self) -> None:
        """Give the connection back if the body was read to its end, else close it."""
        self._response.close()

    async def _available(self) -> memoryview:
        if not self._rest:
            chunk = await self._reach.connection.next_bytes(self._response)
            if not chunk:
                where = self._reach.connection.where
                raise SourceUnavailable(f"{where}: the answer ended at byte {self.position}")
            self._reach.on_read(len(chunk))
            self._rest = memoryview(chunk)
        return self._rest

    def _take(self, count: int) -> None:
        self._rest = self._rest[count:]
        self.position += count


async def retried(
    settings: SourceSettings, work: Callable[[], Awaitable[T]], progress: Callable[[], int]
) -> T:
    """Return what `work` returns; again after `SourceUnavailable`, with growing waits.

    Tries that brought at least 64 KiB, as `progress` counts them, are not held against it.
    """
    failures, before = 0, progress()
    while True:
        try:
            return await work()
        except SourceUnavailable:
            brought, before = progress() - before, progress()
            failures = 0 if brought >= _PROGRESS_BYTES else failures + 1
            if failures >= settings.attempts:
                raise
        wait = min(_MAX_BACKOFF_S, settings.backoff_s * 2.0**failures)
        await asyncio.sleep(wait * random.uniform(0.5, 1.0))  # noqa: S311 - jitter is no secret


async def open_remote(reach: Reach, name: str, locate: Locate) -> RemoteBlob | None:
    """Return the file's current version, None if the server says that there is none.

    One request for the first `HEAD_BYTES`; the rest is read through only if the server does not
    tell the size.
    """
    limit = reach.settings.read_timeout_s
    try:
        async with asyncio.timeout(limit) as deadline:
            return await retried(
                reach.settings, lambda: _open(reach, name, locate, deadline), lambda: 0
            )
    except TimeoutError:
        pass
    raise SourceUnavailable(f"{name} in {reach.connection.where}: no answer after {limit:g} s")


async def _open(
    reach: Reach, name: str, locate: Locate, deadline: asyncio.Timeout
) -> RemoteBlob | None:
    wanted = {"Range": f"bytes=0-{HEAD_BYTES - 1}"}
    response = await reach.connection.get(await locate(), wanted)
    try:
        where = f"{name} in {reach.connection.where}"
        if response.status in (404, 410):
            # A provider may know better: a bucket that does not exist.
            failure = reach.explain(
                response.status, await _start(reach, response), response.headers
            )
            if failure is not None:
                raise failure
            return None
        if response.status not in (200, 206, 416):
            raise await _failure(reach, response)
        part = Part.of(response.status, response.headers)
        if part is None or part.start != 0:
            raise SourceUnavailable(f"{where}: the answer does not say which bytes it carries")
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise SourceUnavailable(f"{where}: the server compresses what it sends")
        stream = Stream(reach, response, 0)
        size = part.size
        head = Filling(min(HEAD_BYTES, size) if size is not None and part.end else 0)
        if size is None:
            now = asyncio.get_running_loop().time()
            deadline.reschedule(now + reach.settings.scan_timeout_s)
            await stream.count_rest(reach.settings.max_file_bytes)
            size = stream.position
        await stream.fill(head, None)
        validator = Validator.of(response.headers)
        ranges = response.status != 200
    finally:
        response.close()
    return RemoteBlob(reach, name, locate, size, validator, bytes(head.buffer), ranges=ranges)


class RemoteBlob:
    """One version of one file at an HTTP server; what it costs to read depends on the server."""

    linked = False

    def __init__(
        self,
        reach: Reach,
        name: str,
        locate: Locate,
        size: int,
        validator: Validator,
        head: bytes,
        *,
        ranges: bool,
    ) -> None:
        self.name = name
        self.size = size
        self.validator = validator
        self.identity = f"{validator}, {size} bytes"
        told = validator.version or f"{size} bytes"
        self.revision = one_line(told.strip('"'), 64)
        self._where = f"{name} in {reach.connection.where}"
        self._reach = reach
        self._locate = locate
        self._head = head
        self._ranges = ranges
        self._lock = asyncio.Lock()
        self._stream: Stream | None = None

    async def read(self, offset: int, length: int) -> Buffer:
        """Return exactly the bytes asked for, of the version that was opened."""
        if offset + length <= len(self._head):
            return self._head[offset : offset + length]
        filling = Filling(length)
        work = self._range if self._ranges else self._forward
        limit = self._reach.settings.read_timeout_s
        try:
            async with asyncio.timeout(limit):
                await retried(
                    self._reach.settings, lambda: work(offset, filling), lambda: filling.done
                )
        except TimeoutError:
            pass
        else:
            return filling.buffer
        raise SourceUnavailable(
            f"{self._where}: {filling.done} of {length} bytes at {offset} after {limit:g} s"
        )

    def close(self) -> None:
        """Drop the open stream, if any; the next read opens another."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    async def _range(self, offset: int, filling: Filling) -> None:
        while filling.missing:
            start = offset + filling.done
            last = offset + len(filling.buffer) - 1
            response = await self._get({"Range": f"bytes={start}-{last}"})
            try:
                part = self._checked(response, start)
                stream = Stream(self._reach, response, part.start)
                await stream.skip_to(start)
                await stream.fill(filling, part.end)
            finally:
                response.close()

    async def _forward(self, offset: int, filling: Filling) -> None:
        async with self._lock:
            start = offset + filling.done
            if self._stream is None or self._stream.position > start:
                self.close()
                response = await self._get({})
                try:
                    part = self._checked(response, 0)
                    self._stream = Stream(self._reach, response, part.start)
                finally:
                    if self._stream is None:
                        response.close()
            try:
                await self._stream.skip_to(start)
                await self._stream.fill(filling, None)
            except SourceUnavailable:
                self.close()
                raise

    async def _get(self, headers: Mapping[str, str]) -> aiohttp.ClientResponse:
        response = await self._reach.connection.get(
            await self._locate(), {**headers, **self.validator.conditions()}
        )
        try:
            if response.status in (404, 410):
                raise SourceNotFound(f"{self._where}: gone since it was resolved")
            if response.status in (412, 416):
                raise SourceChanged(f"{self._where}: changed since it was resolved")
            if response.status not in (200, 206):
                raise await _failure(self._reach, response)
        except BaseException:
            response.close()
            raise
        return response

    def _checked(self, response: aiohttp.ClientResponse, start: int) -> Part:
        """Return which bytes the answer carries, after comparing it with what was opened."""
        found = Validator.of(response.headers)
        if found != self.validator:
            raise SourceChanged(
                f"{self._where}: changed since it was resolved ({one_line(str(found))})"
            )
        part = Part.of(response.status, response.headers)
        if part is None or part.start not in (0, start):
            raise SourceUnavailable(f"{self._where}: the answer carries other bytes than asked for")
        if part.size is not None and part.size != self.size:
            raise SourceChanged(f"{self._where}: has {part.size} bytes, resolved {self.size}")
        return part


async def _failure(reach: Reach, response: aiohttp.ClientResponse) -> SourceError:
    """Return what a status that carries no file means."""
    body = await _start(reach, response)
    explained = reach.explain(response.status, body, response.headers)
    if explained is not None:
        return explained
    return SourceUnavailable(f"{reach.connection.where}: HTTP status {response.status}")


async def _start(reach: Reach, response: aiohttp.ClientResponse) -> bytes:
    body = b""
    while len(body) < _EXPLANATION_BYTES:
        chunk = await reach.connection.next_bytes(response)
        if not chunk:
            break
        body += chunk
    return body[:_EXPLANATION_BYTES]
