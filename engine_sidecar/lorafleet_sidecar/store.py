"""The facade over the arena that the agent and the service use.

All methods belong to the event loop's thread; those that move many bytes are coroutines and do
it in worker threads. Everything that must outlive this process is in the index before a method
returns.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import shutil
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

from lorafleet.errors import StagingFull, TooLarge

from lorafleet_sidecar import healing, index, plain
from lorafleet_sidecar.allocator import ALIGNMENT, Allocator, Extent, aligned, find_room
from lorafleet_sidecar.arena import Arena, ArenaError, in_units
from lorafleet_sidecar.changes import Changes
from lorafleet_sidecar.crashpoint import crash_at
from lorafleet_sidecar.paths import REVISIONS, STAGING, hex_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator
    from pathlib import Path

T = TypeVar("T")
MAX_SOURCES = 64
"""Fingerprints kept of one content, which may have many; one that is forgotten is sent once more."""


@dataclass(frozen=True)
class StagedRevisionInfo:
    """One committed revision; the fields of `StagedRevision` on the wire."""

    digest: str  # "sha256:<hex>"
    fingerprint: str  # of the source that brought it first
    size_bytes: int  # of its extent, 2 MiB aligned
    rank: int
    adapter: str
    notes: tuple[str, ...]
    in_use: bool  # held: the engine may read it


@dataclass(frozen=True)
class ArenaUsageInfo:
    """Bytes of the arena: `used + reserved + free == limit`, `in_use <= used`."""

    limit: int
    used: int  # committed extents, plain exports and quarantine
    reserved: int  # stagings in progress or waiting for their resume
    in_use: int  # held extents, plain exports and quarantine
    largest_free: int


class RevisionStore:
    """Committed revisions of one volume, and the arena they lie in.

    `changes` is notified after each change of revisions, usage, holds or stagings.
    """

    def __init__(self, volume: Path, arena: Arena, state: index.IndexState) -> None:
        self.volume = volume
        self.arena = arena
        self.changes = Changes()
        self._state = state
        self._room = Allocator(arena.size, state.extents())
        self._holds: set[str] | None = None  # None: not told yet, all are held
        self.kept: set[str] = set()  # wanted back perhaps: evicted after all that is not
        self.broken: set[str] = set()  # stagings that nobody goes on with: they give way
        self._lent: Counter[str] = Counter()  # being sent to neighbours
        self._plain_lock = asyncio.Lock()
        self._plain_work: set[asyncio.Future[Any]] = set()

    @classmethod
    def open(cls, volume: Path, limit_bytes: int) -> Self:
        """Open or make the volume's arena and index; heals whatever a kill left behind.

        A damaged index gives one warning and an empty store; ranges that revision files still
        name are kept out of use (quarantine) until `set_holds` says that the engine does not
        read them. Raises `ArenaError` if the volume cannot hold `limit_bytes` or has an arena
        of another size.
        """
        if limit_bytes < ALIGNMENT:
            raise ArenaError(f"arena limit is {limit_bytes} bytes, the least is {ALIGNMENT}")
        state = healing.heal(volume, limit_bytes - limit_bytes % ALIGNMENT)
        holes = [entry.extent for entry in state.plain.values()]
        return cls(volume, Arena.create_or_open(volume, limit_bytes, holes), state)

    def close(self) -> None:
        """Unmap the arena. Nothing is lost: a later `open` continues."""
        self.arena.close()

    # What there is.

    def revisions(self) -> list[StagedRevisionInfo]:
        """Return what is committed, least recently used first."""
        return [self._info(entry) for entry in self._by_use()]

    def find(self, digest: str) -> StagedRevisionInfo | None:
        """Return the committed revision of `digest`, if there is one."""
        entry = self._state.revisions.get(digest)
        return self._info(entry) if entry else None

    def find_source(self, fingerprint: str, layout_key: str) -> StagedRevisionInfo | None:
        """Return what the source `fingerprint` was staged as in this layout, marked as used."""
        for entry in self._state.revisions.values():
            if entry.sources.get(fingerprint) == layout_key:
                self._mark_used(entry)
                self._save()
                return replace(self._info(entry), fingerprint=fingerprint)
        return None

    def alike(self, adapter: str, layout_key: str) -> list[str]:
        """Return the revisions of the adapter in this layout, least recently used first."""
        return [
            entry.digest
            for entry in self._by_use()
            if entry.adapter == adapter and layout_key in entry.sources.values()
        ]

    @contextmanager
    def lent(self, digest: str) -> Iterator[memoryview]:
        """Give the image of a revision, which stays meanwhile. Raises KeyError if not committed."""
        entry = self._state.revisions[digest]
        self._lent[digest] += 1
        try:
            with self.arena.extent_view(entry.extent) as whole, whole[: entry.image_bytes] as image:
                yield image
        finally:
            self._lent[digest] -= 1

    def revision_dir(self, digest: str) -> Path:
        """Return `revisions/<hex>`. Raises KeyError for a digest that is not committed."""
        self._state.revisions[digest]
        return self.volume / REVISIONS / hex_of(digest)

    def usage(self) -> ArenaUsageInfo:
        """Return the exact accounting of the arena."""
        state = self._state
        reserved = sum(entry.extent.size for entry in state.stagings.values())
        lent = sum(entry.extent.size for entry in state.plain.values())
        lent += sum(extent.size for extent in state.quarantine.values())
        held = sum(e.extent.size for e in state.revisions.values() if self._is_held(e.digest))
        return ArenaUsageInfo(
            limit=self._room.limit,
            used=self._room.taken_bytes() - reserved,
            reserved=reserved,
            in_use=lent + held,
            largest_free=self._room.largest_free(),
        )

    def extents(self) -> list[Extent]:
        """Return every taken range, by offset."""
        return sorted(self._state.extents())

    # What the engine needs.

    def set_holds(self, digests: Iterable[str]) -> None:
        """Say which revisions the engine may read: all others may be evicted from now on.

        Until the first call every revision counts as held, for a sidecar that has just started
        does not know what the engine reads. Unknown digests are remembered.
        """
        wanted = set(digests)
        released = [digest for digest in self._state.quarantine if digest not in wanted]
        for digest in released:
            self._room.free(self._state.quarantine.pop(digest))
        if released:
            self._save()
            for digest in released:
                self._remove_files(digest)
        if released or wanted != self._holds:
            self._holds = wanted
            self.changes.notify()

    def hold(self, digest: str) -> None:
        """Add one hold, and mark the revision as used now. Raises KeyError if not committed."""
        self._mark_used(self._state.revisions[digest])
        self._save()
        if self._holds is not None:
            self._holds.add(digest)
        self.changes.notify()

    def release(self, digest: str) -> None:
        """Take the hold away; the revision stays until its space is wanted."""
        if self._holds is not None and digest in self._holds:
            self._holds.discard(digest)
            self.changes.notify()

    def drop(self, digest: str) -> bool:
        """Free a revision. False if it is not there, or held, or exported as plain files."""
        if digest not in self._state.revisions or self._is_held(digest):
            return False
        self._evict([digest])
        self._save()
        self._remove_files(digest)
        self.changes.notify()
        return True

    # Transfers.

    def stagings(self) -> list[index.StagingEntry]:
        """Return the reservations, in no order."""
        return list(self._state.stagings.values())

    def reserve(
        self, fingerprint: str, size: int, prepare: Callable[[index.StagingEntry], None]
    ) -> index.StagingEntry:
        """Reserve `size` bytes, evicting what nobody needs, least recently used first.

        `prepare` writes the staging's files before the index names it. Raises TooLarge for
        what can never fit and StagingFull for what does not fit now; nothing changes then.
        """
        extent, victims = self._make_room(size)
        entry = index.StagingEntry(secrets.token_hex(16), fingerprint, extent)
        try:
            prepare(entry)
        except BaseException:
            shutil.rmtree(self.volume / STAGING / entry.staging_id, ignore_errors=True)
            raise
        self._evict(victims)
        self._room.take(extent)
        self._state.stagings[entry.staging_id] = entry
        self._save()
        for digest in victims:
            self._remove_files(digest)
        crash_at("stage.reserved")
        self.changes.notify()
        return entry

    def fits(self, size: int, free: Collection[Extent] = ()) -> bool:
        """Return whether `reserve` finds room once what lies at `free` is gone."""
        with suppress(StagingFull, TooLarge):
            return bool(self._make_room(size, free=free))
        return False

    def discard(self, staging_id: str) -> None:
        """Free a reservation; no-op if it is gone. Its writers must have ended."""
        entry = self._state.stagings.pop(staging_id, None)
        if entry is None:
            return
        self._room.free(entry.extent)
        self._save()
        shutil.rmtree(self.volume / STAGING / staging_id, ignore_errors=True)
        self.changes.notify()

    def commit(self, staging_id: str, revision: index.RevisionEntry) -> StagedRevisionInfo:
        """Turn a reservation into a revision, in one replacement of the index.

        `revisions/<hex>` must be written. Content that is here already keeps its extent: the
        reservation is freed and the source noted.
        """
        entry = self._state.stagings.pop(staging_id)
        present = self._state.revisions.get(revision.digest)
        if present is None:
            self._state.revisions[revision.digest] = present = revision
        else:
            present.sources.update(revision.sources)
            while len(present.sources) > MAX_SOURCES:
                del present.sources[next(iter(present.sources))]
            self._room.free(entry.extent)
        self._mark_used(present)
        self._save()
        crash_at("stage.committed")
        shutil.rmtree(self.volume / STAGING / staging_id, ignore_errors=True)
        self.changes.notify()
        return replace(self._info(present), fingerprint=entry.fingerprint)

    # Plain files, for engines without the plugin.

    async def export_plain(self, digest: str) -> Path:
        """Return `plain/<hex>`, a plain adapter directory, and hold the revision meanwhile.

        The space comes out of the arena's budget. Raises KeyError, StagingFull.
        """
        return await self._to_the_end(self._export(digest))

    async def release_plain(self, digest: str) -> None:
        """Remove `plain/<hex>` and give its space back to the arena; no-op when absent."""
        await self._to_the_end(self._release(digest))

    def plain_exports(self) -> list[str]:
        """Return the digests that have plain files."""
        return list(self._state.plain)

    # The agent's own table.

    @property
    def published(self) -> Any:
        """The JSON value last given to `set_published`; None at first."""
        return self._state.published

    def set_published(self, table: Any) -> None:
        """Keep an opaque JSON value of the agent in the index, durable on return."""
        self._state.published = json.loads(json.dumps(table))
        self._save()
        self.changes.notify()

    # Inside.

    async def _to_the_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work`, which goes on when the caller is cancelled: its threads do too."""
        task = asyncio.ensure_future(work)
        self._plain_work.add(task)
        task.add_done_callback(self._plain_work.discard)
        return await asyncio.shield(task)

    async def _export(self, digest: str) -> Path:
        async with self._plain_lock:
            revision = self._state.revisions[digest]
            if digest in self._state.plain:
                return plain.directory(self.volume, digest)
            extent, victims = self._make_room(plain.size_of(revision), keep=digest)
            self._evict(victims)
            self._room.take(extent)
            self._state.plain[digest] = index.PlainEntry(digest, extent)
            self._save()
            for victim in victims:
                self._remove_files(victim)
            self.changes.notify()
            try:
                return await asyncio.to_thread(
                    plain.write, self.volume, self.arena, revision, extent
                )
            except BaseException:
                await self._take_back(digest)
                raise

    async def _release(self, digest: str) -> None:
        async with self._plain_lock:
            if digest in self._state.plain:
                await self._take_back(digest)

    async def _take_back(self, digest: str) -> None:
        extent = self._state.plain[digest].extent
        await asyncio.to_thread(plain.remove, self.volume, self.arena, digest, extent)
        del self._state.plain[digest]
        self._room.free(extent)
        self._save()
        self.changes.notify()

    def _evict(self, digests: Iterable[str]) -> None:
        for digest in digests:
            self._room.free(self._state.revisions.pop(digest).extent)

    def _make_room(
        self, size: int, keep: str = "", free: Collection[Extent] = ()
    ) -> tuple[Extent, list[str]]:
        """Return where `size` bytes fit, were these `free`, and which revisions must go for it."""
        wanted = aligned(size)
        if wanted > self._room.limit:
            raise TooLarge(f"needs {wanted} bytes, the arena holds {self._room.limit}")
        by_need = sorted(self._by_use(), key=lambda entry: entry.digest in self.kept)
        loose = (each for each in by_need if not self._is_held(each.digest))
        evictable = {each.extent: each.digest for each in loose if each.digest != keep}
        taken = [extent for extent in self._state.extents() if extent not in free]
        found = find_room(self._room.limit, taken, evictable, wanted)
        if found is None:
            usage = self.usage()
            raise StagingFull(
                f"staging volume full: {in_units(usage.used + usage.reserved)} of "
                f"{in_units(usage.limit)} used, need {in_units(wanted)}"
            )
        return found[0], [evictable[extent] for extent in found[1]]

    def _by_use(self) -> list[index.RevisionEntry]:
        return sorted(self._state.revisions.values(), key=lambda entry: entry.used)

    def _mark_used(self, entry: index.RevisionEntry) -> None:
        self._state.uses += 1
        entry.used = self._state.uses

    def _is_held(self, digest: str) -> bool:
        held = self._holds is None or digest in self._holds or digest in self._state.plain
        return held or self._lent[digest] > 0

    def _info(self, entry: index.RevisionEntry) -> StagedRevisionInfo:
        return StagedRevisionInfo(
            digest=entry.digest,
            fingerprint=next(iter(entry.sources)),
            size_bytes=entry.extent.size,
            rank=entry.rank,
            adapter=entry.adapter,
            notes=entry.notes,
            in_use=self._is_held(entry.digest),
        )

    def _save(self) -> None:
        index.replace(self.volume, self._state)

    def _remove_files(self, digest: str) -> None:
        shutil.rmtree(self.volume / REVISIONS / hex_of(digest), ignore_errors=True)
