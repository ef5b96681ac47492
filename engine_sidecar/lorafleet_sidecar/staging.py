"""Transfers in progress: one writer per fingerprint, resumed after a break, freed after a while."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

from lorafleet.errors import (
    AdapterRejected,
    DigestMismatch,
    EngineUnreachable,
    StagingBusy,
    StagingFull,
    TooLarge,
    TransferInterrupted,
)

from lorafleet_sidecar import commit, reuse, sealing
from lorafleet_sidecar.chunk_writer import ChunkWriter
from lorafleet_sidecar.crashpoint import crash_at
from lorafleet_sidecar.index import RevisionEntry, StagingEntry
from lorafleet_sidecar.sealing import Sealing
from lorafleet_sidecar.staging_dir import StagingDirectory
from lorafleet_sidecar.staging_plan import StagingPlan

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping
    from pathlib import Path

    from lorafleet.frames import ChunkFrame
    from lorafleet.profile import EngineProfile

    from lorafleet_sidecar.incoming import Incoming
    from lorafleet_sidecar.packed import Key
    from lorafleet_sidecar.sealing import Seal, Sealed
    from lorafleet_sidecar.store import RevisionStore, StagedRevisionInfo

LOOK_SECONDS = 0.1
"""Between two looks at what has become complete."""


class Stagings:
    """All transfers of one store; belongs to the event loop's thread.

    `ttl_seconds` is how long a broken transfer keeps its reservation for a resume.
    """

    def __init__(
        self, store: RevisionStore, *, ttl_seconds: float = 900.0, pod_uid: str = ""
    ) -> None:
        self.store = store
        self._pod_uid = pod_uid
        self.threads = ThreadPoolExecutor(32, thread_name_prefix="staging")
        self.hashing = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="hashing")
        self.received_bytes = 0  # payload by all streams and receivers since the start
        self.reused_bytes = 0  # of payload that was not sent: earlier revisions had it
        self._ttl = ttl_seconds
        self._active: dict[str, Incoming | None] = {}  # by fingerprint: the stream that stages it
        self._expiry: dict[str, asyncio.TimerHandle] = {}  # by staging id
        self._ending: set[asyncio.Task[None]] = set()
        for entry in store.stagings():
            self.expire_later(entry)

    async def close(self) -> None:
        """Wait for transfers that are ending, end the threads; reservations stay in the index."""
        if self._ending:
            await asyncio.wait(self._ending)
        for timer in self._expiry.values():
            timer.cancel()
        await asyncio.to_thread(self.threads.shutdown)
        self.hashing.shutdown()

    async def begin(
        self, raw_manifest: bytes, profile: EngineProfile, stream: Incoming | None = None
    ) -> StagedRevisionInfo | ActiveStaging:
        """Return the revision if its content is here, else a staging that awaits its `open`.

        Raises AdapterRejected before anything is reserved, StagingBusy while another stream
        stages the same fingerprint, StagingFull when there is no room, EngineUnreachable if the
        manifest is for another pod.
        """
        limit = self.store.usage().limit
        plan = await self.run(StagingPlan.make, raw_manifest, profile, limit)
        fingerprint = plan.manifest.fingerprint
        if plan.manifest.pod_uid not in ("", self._pod_uid):
            raise EngineUnreachable(
                f"adapter {plan.manifest.adapter}: this sidecar is pod uid "
                f"{self._pod_uid or '(none)'}, the transfer is for {plan.manifest.pod_uid}"
            )
        if fingerprint in self._active:
            self._hang_up(self._active[fingerprint])
            raise StagingBusy(
                f"adapter {plan.manifest.adapter}: another stream is staging {fingerprint}"
            )
        present = self.store.find_source(fingerprint, plan.layout_key)
        if present is not None:
            check_digest(plan, present.digest)
            return present
        # Of a neighbour's stream all chunks come here; one of the operator may wait for stripes.
        self._active[fingerprint] = stream if plan.manifest.pod_uid else None
        try:
            # No await from here on: a cancelled call must not leave a reservation behind.
            entry = self._resumable(plan) or self._reserve(plan, profile)
            staging = self._activate(entry, plan)
        except BaseException:
            del self._active[fingerprint]
            raise
        self._go_on(entry)
        self.store.changes.notify()
        return staging

    def _hang_up(self, stream: Incoming | None) -> None:
        """End a neighbour's silent stream: the chain goes on without that neighbour."""
        if stream is not None and stream.is_silent():
            stream.hang_up()

    def expire_later(self, entry: StagingEntry) -> None:
        """Free the reservation of `entry` unless it is resumed in time, or before if it has to give way."""
        loop = asyncio.get_running_loop()
        self._expiry[entry.staging_id] = loop.call_later(self._ttl, self._expire, entry)
        self.store.broken.add(entry.staging_id)
        self.store.changes.notify()

    def _go_on(self, entry: StagingEntry) -> None:
        """Take back `expire_later`."""
        self.store.broken.discard(entry.staging_id)
        timer = self._expiry.pop(entry.staging_id, None)
        if timer is not None:
            timer.cancel()

    def ended(self, entry: StagingEntry) -> None:
        """Let another stream stage the fingerprint of `entry`."""
        self._active.pop(entry.fingerprint, None)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start work that `close` waits for."""
        task = asyncio.create_task(work)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return task

    async def run(self, function: Any, *args: Any) -> Any:
        """Run a blocking function in a worker thread."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, function, *args)

    def _resumable(self, plan: StagingPlan) -> StagingEntry | None:
        """Return the reservation that `plan` continues; one of another content is freed."""
        for entry in self.store.stagings():
            if entry.fingerprint != plan.manifest.fingerprint:
                continue
            directory = StagingDirectory.find(self.store.volume, entry.staging_id)
            same_key = directory.layout_key == plan.layout_key and not plan.manifest.whole
            if same_key and not directory.is_refused() and plan.continues(directory.manifest()):
                return entry
            self._forget(entry)
        return None

    def _reserve(self, plan: StagingPlan, profile: EngineProfile) -> StagingEntry:
        def prepare(entry: StagingEntry) -> None:
            StagingDirectory.create(
                self.store.volume, entry.staging_id, entry.extent, plan, profile
            )

        adapter = plan.manifest.adapter
        try:
            self._let_go_for(plan.image_bytes)
            return self.store.reserve(plan.manifest.fingerprint, plan.image_bytes, prepare)
        except (StagingFull, TooLarge) as error:
            raise type(error)(f"adapter {adapter}: {error}") from error

    def _let_go_for(self, size: int) -> None:
        """Give up what broken transfers left, if only that makes room: it can be sent again."""
        broken = [entry for entry in self.store.stagings() if entry.fingerprint not in self._active]
        if not self.store.fits(size) and self.store.fits(size, [each.extent for each in broken]):
            for entry in broken:
                self._forget(entry)

    def _activate(self, entry: StagingEntry, plan: StagingPlan) -> ActiveStaging:
        directory = StagingDirectory.find(self.store.volume, entry.staging_id)
        return ActiveStaging(self, entry, plan, directory)

    def _expire(self, entry: StagingEntry) -> None:
        if entry.fingerprint not in self._active:
            self._forget(entry)

    def _forget(self, entry: StagingEntry) -> None:
        self._go_on(entry)
        self.store.discard(entry.staging_id)


class ActiveStaging:
    """One accepted transfer, from its manifest to its commit or its break."""

    def __init__(
        self,
        stagings: Stagings,
        entry: StagingEntry,
        plan: StagingPlan,
        directory: StagingDirectory,
    ) -> None:
        self.plan = plan
        self.staging_id = entry.staging_id
        self._stagings = stagings
        self._entry = entry
        self._directory = directory
        self._gate = directory.gate()
        self._writer: ChunkWriter | None = None
        self._received = directory.received()
        self._awaited = self._received.missing()
        self._known: dict[Key, Sealed] = {}  # packed tensors that were taken over
        self._sealing = Sealing(plan, stagings.store.arena, entry.extent, stagings.hashing)
        self._looking: asyncio.Task[None] | None = None
        self._looked = asyncio.Event()  # at all that comes before the commit
        self._opening: asyncio.Task[None] | None = None
        self._commit: asyncio.Task[StagedRevisionInfo] | None = None
        self._keep = True

    async def open(self) -> None:
        """Clear what no chunk carries, take over what is here, then let writers in.

        To be awaited before any chunk.
        """
        self._opening = asyncio.create_task(self._open())
        await asyncio.shield(self._opening)

    async def _open(self) -> None:
        store = self._stagings.store
        with ExitStack() as held:  # nothing of it is evicted while it is copied
            earlier = {
                store.revision_dir(digest): held.enter_context(store.lent(digest))
                for digest in self._earlier()
            }
            await self._stagings.run(self._prepare, earlier)
        self._looking = asyncio.create_task(self._look())

    async def _look(self) -> None:
        """Seal what is complete while the rest comes. By the clock: other processes count chunks in."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._looked.wait(), LOOK_SECONDS)
                return
            await self._stagings.run(self._sealing.look, self._received, self._known)

    async def _end_looking(self) -> None:
        self._looked.set()
        if self._looking is not None:
            await asyncio.wait([self._looking])

    def _earlier(self) -> list[str]:
        """Return the adapter's revisions of the same layout, if what they have may be taken."""
        manifest = self.plan.manifest
        if manifest.whole or not manifest.tensor_digests:
            return []
        return self._stagings.store.alike(manifest.adapter, self.plan.layout_key)

    def _prepare(self, earlier: Mapping[Path, memoryview]) -> None:
        arena = self._stagings.store.arena
        if self._received.count() == 0:  # else it was done before the first chunk was let in
            if not (earlier and self._take_over(earlier)):
                commit.clear(arena, self._entry.extent, self.plan.layout)
            self._awaited = self._received.missing()
        self._gate.open()
        self._writer = ChunkWriter(self._directory, self.plan, arena)

    def _take_over(self, earlier: Mapping[Path, memoryview]) -> bool:
        """Fill the image with what an earlier revision has; return whether there is one."""
        stagings, plan = self._stagings, self.plan
        arena, extent = stagings.store.arena, self._entry.extent
        taken = reuse.take_over(plan, earlier, arena, extent, stagings.hashing)
        if taken is None:
            return False
        commit.frame(arena, extent, plan.layout)
        self._known = taken.known
        stagings.reused_bytes += sum(plan.chunks[index][1] for index in taken.chunks)
        self._received.note(taken.chunks)
        crash_at("reuse.noted")
        return True

    def missing(self) -> list[int]:
        """Return the indexes of the chunks that have not arrived."""
        return self._received.missing()

    def received_count(self) -> int:
        """Return how many chunks have arrived by all streams."""
        return self._received.count()

    def index_of(self, chunk: ChunkFrame) -> int:
        """Return the chunk's index in the plan. Raises TransferInterrupted if it has none."""
        assert self._writer is not None  # open() came before
        return self._writer.index_of(chunk)

    async def check(self, chunk: ChunkFrame) -> None:
        """Check a chunk that arrived before and is only passed on."""
        assert self._writer is not None  # open() came before
        await self._stagings.run(self._writer.check, chunk)

    async def write(self, chunk: ChunkFrame) -> int:
        """Take one chunk of the StageAdapter stream (see ChunkWriter.write)."""
        assert self._writer is not None  # open() came before
        written: int = await self._stagings.run(self._writer.write, chunk)
        return written

    async def commit(self) -> StagedRevisionInfo:
        """Verify the whole and make it a revision.

        Raises TransferInterrupted while chunks are missing and DigestMismatch when the content
        is not what was promised (nothing is kept then).
        """
        self._commit = asyncio.create_task(self._verify_and_commit())
        return await asyncio.shield(self._commit)

    async def end(self) -> None:
        """Leave the staging: committed, kept for a resume, or freed if the adapter is bad.

        Must be called once, always; waits until nobody writes into the extent any more. Goes on
        by itself when the caller is cancelled meanwhile.
        """
        await asyncio.shield(self._stagings.spawn(self._end()))

    async def _end(self) -> None:
        try:
            for work in (self._opening, self._commit):
                if work is not None:
                    await asyncio.wait([work])
            await self._end_looking()
            await self._stagings.run(self._gate.shut)
            await self._stagings.run(self._sealing.drop)
            left = set(self.missing())
            self._stagings.received_bytes += sum(
                self.plan.chunks[index][1] for index in self._awaited if index not in left
            )
            if self._keep and not self._directory.is_refused():
                self._stagings.expire_later(self._entry)
            else:
                self._stagings.store.discard(self.staging_id)
        finally:
            for opened in (self._writer, self._received, self._gate):
                if opened is not None:
                    opened.close()
            self._stagings.ended(self._entry)

    async def _verify_and_commit(self) -> StagedRevisionInfo:
        run, store, plan = self._stagings.run, self._stagings.store, self.plan
        missing = self.missing()
        if missing:
            raise TransferInterrupted(
                f"adapter {plan.manifest.adapter}: commit with {len(missing)} of "
                f"{len(plan.chunks)} chunks missing (first: {missing[0]})"
            )
        await self._end_looking()
        await run(self._gate.shut)
        extent, layout = self._entry.extent, plan.layout
        try:
            already = await run(self._sealing.results)
            seal: Seal = await run(
                sealing.seal,
                store.arena,
                extent,
                layout,
                self._stagings.hashing,
                plan.manifest.adapter,
                {**already, **self._known},
            )
            digest = seal.digest
            check_digest(plan, digest)
            identity = await run(commit.is_identity, store.arena, extent, layout)
        except AdapterRejected:
            self._keep = False
            raise
        # From here without a pause: two stagings of equal content must not cross.
        if store.find(digest) is None:
            commit.write_revision(store.volume, seal, extent, layout, reuse.origin(plan))
        revision = RevisionEntry(
            digest=digest,
            extent=extent,
            image_bytes=plan.image_bytes,
            rank=layout.rank,
            adapter=plan.manifest.adapter,
            notes=(*plan.notes, *([commit.IDENTITY] if identity else [])),
            sources={plan.manifest.fingerprint: plan.layout_key},
        )
        self._keep = False  # the index has no reservation any more
        return store.commit(self.staging_id, revision)


def check_digest(plan: StagingPlan, digest: str) -> None:
    """Raise DigestMismatch if the manifest promised another digest."""
    promised = plan.manifest.expected_digest
    if promised and promised != digest:
        raise DigestMismatch(
            f"adapter {plan.manifest.adapter}: the content is {digest}, promised was {promised}"
        )
