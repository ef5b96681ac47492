"""One adapter's source, opened at most once for a pass, which need not wait for it for ever.

A source may take minutes to answer, or never answer at all. A pass that has waited long enough goes on
with what is known, and leaves the reader behind; it comes again when that has read.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from lorafleet_operator import metrics
from lorafleet_operator.awaited_secrets import Referenced
from lorafleet_operator.cluster import reads
from lorafleet_operator.fair import Turn
from lorafleet_operator.sources.registry import open_source

if TYPE_CHECKING:
    from types import TracebackType

    from lorafleet_operator.api.v1alpha1 import LoRAAdapter, LoRAAdapterSpec
    from lorafleet_operator.fleet import Fleet
    from lorafleet_operator.sources.base import ResolvedAdapter, Source

PATIENCE_SECONDS: Final = 5.0
"""How long a pass waits for what a source holds. Most answer within one; those that are read through
to know them take longer."""
_UNCLAIMED_SECONDS: Final = 60.0
"""How long what was read is kept for a pass that does not come: this operator may act for the
adapter no more."""


class SourceReader:
    """Access to an adapter's source. `turn`: its place among those whose source is open.

    source: an open one, in place of the one that the spec names.
    """

    def __init__(
        self, adapter: LoRAAdapter, fleet: Fleet, turn: Turn, source: Source | None = None
    ) -> None:
        self.adapter = adapter
        self._fleet = fleet
        self._turn = turn
        self._source = source
        self._opening: asyncio.Task[ResolvedAdapter] | None = None
        self._late = False  # a pass has gone on without
        self.patience = PATIENCE_SECONDS
        self.secret: Referenced | None = None
        """The Secret that was read for the source."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None and self._late and self._opening is not None:
            self._fleet.readers.leave(self, self._opening)
        else:
            await self.aclose()

    async def aclose(self) -> None:
        """Leave off what is read, and close the source."""
        opening, self._opening = self._opening, None
        try:
            if opening is not None:
                opening.cancel()
                await asyncio.gather(opening, return_exceptions=True)
            if self._source is not None:
                await self._source.aclose()
        finally:
            # The source knows this reader, to count what it reads: a circle that holds the pass.
            self._source = None
            self._turn.give_back()

    async def wait_for_turn(self) -> None:
        """Take the pass's place among those whose source is open.

        Whoever needs it for a transfer takes it before the place among transfers: others hold
        this one while they wait for that, and each would wait for the other for ever.
        """
        await self._turn.take()

    async def read_soon(self) -> bool:
        """Wait until `content` has its answer, but not for long; return whether it has."""
        opening = self._begin()
        await asyncio.wait({opening}, timeout=self.patience)
        self._late = not opening.done()
        return opening.done()

    async def content(self) -> ResolvedAdapter:
        """Return header, config and reads of what the source holds now."""
        opening = self._begin()
        await asyncio.wait({opening})
        return opening.result()

    def _begin(self) -> asyncio.Task[ResolvedAdapter]:
        if self._opening is None:
            self._opening = asyncio.create_task(self._open(), name=f"source of {self.adapter.key}")
        return self._opening

    async def _open(self) -> ResolvedAdapter:
        await self._turn.take()
        self._source = self._source or await self._named()
        return as_taken(await self._source.resolve(), self.adapter.spec)

    async def _named(self) -> Source:
        """Return the source that the spec names."""
        metadata, spec = self.adapter.metadata, self.adapter.spec.source
        secret = None
        if spec.credentials_secret_ref is not None:
            place = (metadata.namespace, spec.credentials_secret_ref.name)
            self.secret = Referenced(*place, version="")  # if it may not be read
            found = await reads.secret(self._fleet.api, *place)
            self.secret = Referenced(*place, found.version)
            secret = found.data
        return open_source(
            spec,
            namespace=metadata.namespace,
            name=metadata.name,
            settings=self._fleet.source_settings,
            secret=secret,
            on_read=self._count,
        )

    def _count(self, amount: int) -> None:
        if self._source is not None:
            metrics.SOURCE_READ_BYTES.labels(self._source.kind).inc(amount)


class Readers:
    """The readers of all passes; those that were left behind are kept, by their adapter's UID."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._readers: dict[str, SourceReader] = {}
        self._ends: set[asyncio.Task[None]] = set()

    def of(self, adapter: LoRAAdapter, turn: Turn | None = None) -> SourceReader:
        """Return access to the adapter's source: as a pass left it behind, else with this turn."""
        left = self._take(adapter)
        if left is not None:
            return left
        place = Turn(self._fleet.sources.of(adapter.metadata.namespace))
        return SourceReader(adapter, self._fleet, turn.pass_on() if turn is not None else place)

    def leave(self, reader: SourceReader, opening: asyncio.Task[ResolvedAdapter]) -> None:
        """Keep a reader that has not read yet; a pass is woken when it has."""
        self.drop(reader.adapter.metadata.uid)
        self._readers[reader.adapter.metadata.uid] = reader
        reader.patience = 0.0  # it has been waited for
        opening.add_done_callback(partial(self._has_read, reader))

    def has(self, uid: str) -> bool:
        """Return whether one of the adapter is here: it has its turn, or waits for it."""
        return uid in self._readers

    def drop(self, uid: str) -> None:
        """Close the adapter's, if there is one."""
        reader = self._readers.pop(uid, None)
        if reader is not None:
            end = asyncio.create_task(reader.aclose())
            self._ends.add(end)
            end.add_done_callback(self._ends.discard)

    async def close(self) -> None:
        """Close all."""
        for uid in list(self._readers):
            self.drop(uid)
        await asyncio.gather(*self._ends, return_exceptions=True)

    def _take(self, adapter: LoRAAdapter) -> SourceReader | None:
        """Return the one that reads what this spec names, and keep it no longer."""
        reader = self._readers.get(adapter.metadata.uid)
        if reader is None:
            return None
        if reader.adapter.metadata.generation != adapter.metadata.generation:
            self.drop(adapter.metadata.uid)
            return None
        return self._readers.pop(adapter.metadata.uid)

    def _has_read(self, reader: SourceReader, opening: asyncio.Task[ResolvedAdapter]) -> None:
        if not opening.cancelled():
            opening.exception()  # the pass that comes hears of it; if none comes, nobody has to
        uid = reader.adapter.metadata.uid
        if self._readers.get(uid) is reader:
            self._fleet.wakeups.wake(reader.adapter.key, news=True)
            loop = asyncio.get_running_loop()
            loop.call_later(_UNCLAIMED_SECONDS, self._expire, uid, reader)

    def _expire(self, uid: str, reader: SourceReader) -> None:
        if self._readers.get(uid) is reader:
            self.drop(uid)


def as_taken(content: ResolvedAdapter, spec: LoRAAdapterSpec) -> ResolvedAdapter:
    """Return the content with an identity that tells also what the spec takes of it.

    Sidecars and links remember content by its fingerprint, and another choice of the same file
    is other content.
    """
    taken = fingerprint_as_taken(content.fingerprint, spec)
    return content if taken == content.fingerprint else replace(content, fingerprint=taken)


def fingerprint_as_taken(fingerprint: str, spec: LoRAAdapterSpec) -> str:
    """Return the identity of content that the spec may take in its own way."""
    name, drop = spec.source.adapter_name, spec.drop_unmatched
    if name is None and drop is None:
        return fingerprint
    return hashlib.sha256(json.dumps([fingerprint, name, drop]).encode()).hexdigest()
