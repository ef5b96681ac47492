"""A revision that is being pushed, as a source: whoever reads it waits for what has not come yet.

Only bytes that were checked are given out. All is confirmed once a spec names the revision.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import IO, TYPE_CHECKING

from lorafleet.errors import SourceUnavailable
from lorafleet.uninterrupted import uninterrupted

from lorafleet_operator.push.stream import done
from lorafleet_operator.sources.pushed import PART, PushedBlob, PushedSource

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from lorafleet_operator.push.revision import PushedRevision
    from lorafleet_operator.sources.base import Buffer, ResolvedAdapter
    from lorafleet_operator.sources.pushed import Place


class Arrival:
    """How far a push has come. Belongs to one event loop."""

    def __init__(self) -> None:
        self._counted = 0
        self._committed = self._over = False
        self._moved = asyncio.Event()
        self.whole = False
        """Whether all of it is kept: nothing is missing but the spec that names it."""

    def came(self, counted: int) -> None:
        """Note up to where the file is right that it is written to."""
        self._counted = counted
        self._move()

    def kept(self) -> None:
        """Note that all of it is kept."""
        self.whole = True
        self._move()

    def commit(self) -> None:
        """Note that a spec names the revision."""
        self._committed = True
        self._move()

    def end(self) -> None:
        """Note that the push is over: what has not come by now does not come."""
        self._over = True
        self._move()

    async def reached(self, offset: int) -> None:
        """Wait until the file is right up to there. Raises SourceUnavailable."""
        await self._until(lambda: self.whole or self._counted >= offset)

    async def committed(self) -> None:
        """Wait for the commit. Raises SourceUnavailable when there is none."""
        await self._until(lambda: self._committed)

    def check_goes_on(self) -> None:
        """Raise SourceUnavailable when the push is over."""
        if self._over:
            raise SourceUnavailable("the push is over")

    async def _until(self, true: Callable[[], bool]) -> None:
        while not true():
            self.check_goes_on()
            await self._moved.wait()

    def _move(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()


class ArrivingSource(PushedSource):
    """One revision while it comes. Its files are held open, since the push gives them other names."""

    def __init__(
        self,
        folder: Path,
        revision: PushedRevision,
        places: list[Place],
        arrival: Arrival,
        on_read: Callable[[int], None],
    ) -> None:
        """folder: the adapter's. places: where its tensors lie, or will."""
        namespace, name = folder.parts[-2:]
        super().__init__(
            root=folder.parents[1],
            namespace=namespace,
            name=name,
            revision=revision.revision,
            on_read=on_read,
        )
        self._described = revision
        self._places = places
        self._arrival = arrival
        self._blobs: list[_ArrivingBlob] = []

    async def resolve(self) -> ResolvedAdapter:
        """Return the revision; most of it may have yet to come.

        Raises SourceUnavailable when the push is over: then the file may be that of another by now,
        whose tensors lie elsewhere.
        """
        content: ResolvedAdapter = await done(self._read)
        self._arrival.check_goes_on()
        return replace(content, checks=(self._arrival.committed,))

    async def aclose(self) -> None:
        """Close the files."""
        for blob in self._blobs:
            blob.close()

    @uninterrupted()
    def _read(self) -> ResolvedAdapter:
        described = self._described
        return self._content(described.header_bytes, described.config_bytes, self._places)

    def _blob(self, file: str) -> PushedBlob:
        path = self._folder / "data" / file
        blob = _ArrivingBlob(path, self.uri, self._on_read, self._arrival)
        self._blobs.append(blob)
        return blob


class _ArrivingBlob(PushedBlob):
    """One file of it, held open. A read that is cancelled ends before the file may be closed."""

    def __init__(
        self, path: Path, uri: str, on_read: Callable[[int], None], arrival: Arrival
    ) -> None:
        super().__init__(path, uri, on_read)
        self._arrival = arrival
        self._held = path.open("rb", buffering=0)

    async def read(self, offset: int, length: int) -> Buffer:
        """Return exactly the bytes asked for, once they have come and are right."""
        if PART in self.name:
            await self._arrival.reached(offset + length)
        found: Buffer = await done(partial(self._read, offset, length))
        return found

    def close(self) -> None:
        self._held.close()

    def _open(self) -> AbstractContextManager[IO[bytes]]:
        return nullcontext(self._held)
