"""One version of one file behind HTTP, read by ranges.

Every answer is checked against what was opened: validator, total size, place of the range. A
broken read goes on where it broke. A server without ranges is read as one stream that moves
forward.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from lorafleet.errors import (
    SourceChanged,
    SourceError,
    SourceNotFound,
    SourceUnavailable,
    TooLarge,
)

from lorafleet_operator.sources.bounds import one_line
from lorafleet_operator.sources.retries import AskedToWait, retried, retry_after
from lorafleet_operator.sources.stream import Filling, Stream
from lorafleet_operator.sources.validators import Part, Validator

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    import aiohttp

    from lorafleet_operator.sources.base import Buffer
    from lorafleet_operator.sources.connection import Target
    from lorafleet_operator.sources.stream import Reach

    Locate = Callable[[], Awaitable[Target]]

HEAD_BYTES = 64 << 10
"""Bytes read on opening: header and config of small adapters come with the first request."""
_EXPLANATION_BYTES = 4 << 10


async def open_remote(reach: Reach, name: str, locate: Locate, limit: int) -> RemoteBlob | None:
    """Return the file's current version, None if the server says that there is none.

    One request for the first `HEAD_BYTES`; the rest is read through only if the server does not
    tell the size. Raises `TooLarge` as soon as there are more than `limit` bytes.
    """
    seconds = reach.settings.read_timeout_s
    try:
        async with asyncio.timeout(seconds) as deadline:
            return await retried(
                reach.settings, lambda: _open(reach, name, locate, limit, deadline)
            )
    except TimeoutError:
        pass
    raise SourceUnavailable(f"{name} in {reach.connection.where}: no answer after {seconds:g} s")


async def _open(
    reach: Reach, name: str, locate: Locate, limit: int, deadline: asyncio.Timeout
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
        _check_encoding(response, where)
        stream = Stream(reach, response, 0)
        size = part.size
        head = Filling(min(HEAD_BYTES, size) if size is not None and part.end else 0)
        if size is None:
            now = asyncio.get_running_loop().time()
            deadline.reschedule(now + reach.settings.scan_timeout_s)
            await stream.count_rest(limit)
            size = stream.position
        if size > limit:
            told = f"more than {limit}" if part.size is None else str(size)
            raise TooLarge(f"{where} has {told} bytes, at most {limit} are allowed")
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
                if response.status == 200:  # from now on it is cheaper not to ask for ranges
                    self._ranges = False
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
        _check_encoding(response, self._where)
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
    error = reach.explain(response.status, body, response.headers)
    if error is None:
        error = SourceUnavailable(f"{reach.connection.where}: HTTP status {response.status}")
    seconds = retry_after(response.headers)
    if seconds is not None and type(error) is SourceUnavailable:
        return AskedToWait(str(error), seconds)
    return error


def _check_encoding(response: aiohttp.ClientResponse, where: str) -> None:
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise SourceUnavailable(
            f"{where}: the server compresses what it sends ({one_line(encoding, 40)})"
        )


async def _start(reach: Reach, response: aiohttp.ClientResponse) -> bytes:
    body = b""
    while len(body) < _EXPLANATION_BYTES:
        chunk = await reach.connection.next_bytes(response)
        if not chunk:
            break
        body += chunk
    return body[:_EXPLANATION_BYTES]
