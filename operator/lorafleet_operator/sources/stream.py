"""The body of an HTTP answer, read forward into buffers that keep what has arrived."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lorafleet.errors import SourceError, SourceUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import aiohttp

    from lorafleet_operator.sources.bounds import SourceSettings
    from lorafleet_operator.sources.connection import Connection

    Explain = Callable[[int, bytes, Mapping[str, str]], SourceError | None]
    """From status, start of the body and headers to what the provider makes of them."""


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
