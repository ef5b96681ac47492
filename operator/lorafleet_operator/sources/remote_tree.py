"""The files of one adapter behind HTTP, whatever the provider: opened by name, closed together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lorafleet.errors import SourceUnavailable

from lorafleet_operator.sources.hashed import hashed
from lorafleet_operator.sources.remote import RemoteBlob, open_remote

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lorafleet_operator.sources.base import Blob
    from lorafleet_operator.sources.connection import Target
    from lorafleet_operator.sources.stream import Reach


class RemoteTree:
    """`locate` returns the address of a file anew for each request: signatures expire."""

    def __init__(self, reach: Reach, uri: str, locate: Callable[[str], Awaitable[Target]]) -> None:
        self.uri = uri
        self._reach = reach
        self._locate = locate
        self._opened: dict[str, RemoteBlob] = {}

    async def open(self, name: str) -> Blob | None:
        """Return the current version of the file, None if there is no such file."""
        earlier = self._opened.pop(name, None)
        if earlier is not None:
            earlier.close()
        limit = self._reach.settings.max_file_bytes(name)
        blob = await open_remote(self._reach, name, lambda: self._locate(name), limit)
        if blob is None:
            return None
        self._opened[name] = blob
        if blob.validator:
            return blob
        try:
            return await hashed(blob, self.uri, self._reach.settings.scan_timeout_s)
        except TimeoutError:
            pass
        raise SourceUnavailable(f"{name} in {self.uri}: not read through in time")

    async def aclose(self) -> None:
        """Close all streams and connections."""
        for blob in self._opened.values():
            blob.close()
        self._opened.clear()
        await self._reach.connection.aclose()
