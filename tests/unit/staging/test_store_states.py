"""Random lives of a store: after every step the accounting is exact and the bytes are right.

Steps: begin, send, break, commit, hold, release, drop, export and release of plain files, a
restart, and a kill (the volume is opened again while nothing was ended).
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from lorafleet.errors import StagingBusy, StagingFull
from lorafleet.frames import ChunkFrame
from lorafleet_sidecar import index
from lorafleet_sidecar.allocator import Allocator
from lorafleet_sidecar.paths import hex_of
from lorafleet_sidecar.staging import ActiveStaging, Stagings
from lorafleet_sidecar.store import RevisionStore
from staging_builders import engine_profile, source_adapter

LIMIT = 14 << 20
CHUNK = 256 << 10
PROFILE = engine_profile(layers=4)
ADAPTERS = [
    source_adapter(0, rank=8, layers=1),
    source_adapter(1, rank=8, layers=2, dtype="F32"),
    source_adapter(2, rank=64, layers=2),
    source_adapter(3, rank=64, layers=3),
    source_adapter(4, rank=64, layers=4),
    source_adapter(5, rank=64, layers=4),
]
ADAPTERS.append(replace(ADAPTERS[0], fingerprint="test:a copy of the first"))
TWINS = {0, len(ADAPTERS) - 1}
CUTS = [adapter.cuts(CHUNK) for adapter in ADAPTERS]
which = st.integers(0, len(ADAPTERS) - 1)


class StoreLife(RuleBasedStateMachine):
    """The model: what was sent for each adapter, and which digests are held."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        memory = Path("/dev/shm")
        self.volume = Path(
            tempfile.mkdtemp(prefix="lorafleet-states-", dir=memory if memory.is_dir() else None)
        )
        self.active: dict[int, ActiveStaging] = {}
        self.sent: dict[int, set[int]] = {}
        self.digests: dict[int, str] = {}
        self.image_hashes: dict[str, str] = {}
        self.held: set[str] = set()
        self.exported: set[str] = set()
        self.open()

    def open(self) -> None:
        async def opened() -> tuple[RevisionStore, Stagings]:
            store = RevisionStore.open(self.volume, LIMIT)
            return store, Stagings(store, ttl_seconds=1e6)

        self.store, self.stagings = self.run(opened())
        self.store.set_holds(self.held)

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        for staging in self.active.values():
            self.run(staging.end())
        self.run(self.stagings.close())
        self.loop.close()
        shutil.rmtree(self.volume)

    @rule(number=which)
    def begin(self, number: int) -> None:
        adapter = ADAPTERS[number]
        raw = adapter.manifest(CHUNK).SerializeToString()
        before = self.store.extents()
        present = {info.digest for info in self.store.revisions()}
        try:
            outcome = self.run(self.stagings.begin(raw, PROFILE))
        except StagingBusy:
            assert number in self.active
            return
        except StagingFull:
            assert self.store.extents() == before
            return
        if isinstance(outcome, ActiveStaging):
            self.run(outcome.open())
            known = self.sent.get(number, set())
            assert outcome.missing() == [i for i in range(len(CUTS[number])) if i not in known]
            assert self.digests.get(number) not in present or number in TWINS
            self.active[number] = outcome
            self.sent.setdefault(number, set())
        else:
            assert outcome.digest == self.digests[number]
            assert outcome.digest in present
        kept = {info.digest for info in self.store.revisions()}
        assert not (present - kept) & (self.held | self.exported)
        self.look_for_what_gave_way()

    def look_for_what_gave_way(self) -> None:
        """What broke off may go, all of it, for what has no room without."""
        reserved = {entry.fingerprint for entry in self.store.stagings()}
        broken = self.sent.keys() - self.active.keys()
        gone = {number for number in broken if ADAPTERS[number].fingerprint not in reserved}
        assert gone in (set(), broken)
        for number in gone:
            del self.sent[number]

    @precondition(lambda self: self.active)
    @rule(data=st.data(), count=st.integers(1, 20))
    def send(self, data: st.DataObject, count: int) -> None:
        number = data.draw(st.sampled_from(sorted(self.active)))
        for chunk in self.active[number].missing()[:count]:
            offset, crc32c, piece = ADAPTERS[number].chunk(*CUTS[number][chunk])
            self.run(self.active[number].write(ChunkFrame(offset, crc32c, memoryview(piece))))
            self.sent[number].add(chunk)

    @precondition(lambda self: self.active)
    @rule(data=st.data())
    def break_off(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.active)))
        self.run(self.active.pop(number).end())

    @precondition(lambda self: self.active)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.active)))
        count = len(CUTS[number])
        self.send_rest(number)
        staging = self.active.pop(number)
        info = self.run(staging.commit())
        self.run(staging.end())
        assert self.digests.setdefault(number, info.digest) == info.digest
        assert len(self.sent.pop(number)) == count
        entry = self.store._state.revisions[info.digest]
        image = self.store.arena.view[entry.extent.offset :][: entry.image_bytes]
        seen = hashlib.sha256(image).hexdigest()
        assert self.image_hashes.setdefault(info.digest, seen) == seen

    def send_rest(self, number: int) -> None:
        for chunk in self.active[number].missing():
            offset, crc32c, piece = ADAPTERS[number].chunk(*CUTS[number][chunk])
            self.run(self.active[number].write(ChunkFrame(offset, crc32c, memoryview(piece))))
            self.sent[number].add(chunk)

    @precondition(lambda self: self.store.revisions())
    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        digest = data.draw(st.sampled_from([i.digest for i in self.store.revisions()]))
        self.store.hold(digest)
        self.held.add(digest)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        digest = data.draw(st.sampled_from(sorted(self.held)))
        self.store.release(digest)
        self.held.discard(digest)

    @precondition(lambda self: self.store.revisions())
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        digest = data.draw(st.sampled_from([i.digest for i in self.store.revisions()]))
        assert self.store.drop(digest) == (digest not in self.held | self.exported)

    @precondition(lambda self: self.store.revisions())
    @rule(data=st.data())
    def export(self, data: st.DataObject) -> None:
        digest = data.draw(st.sampled_from([i.digest for i in self.store.revisions()]))
        try:
            path = self.run(self.store.export_plain(digest))
        except StagingFull:
            return
        self.exported.add(digest)
        model = (path / "adapter_model.safetensors").read_bytes()
        assert hashlib.sha256(model).hexdigest() == self.image_hashes[digest]

    @precondition(lambda self: self.exported)
    @rule(data=st.data())
    def release_plain(self, data: st.DataObject) -> None:
        digest = data.draw(st.sampled_from(sorted(self.exported)))
        self.run(self.store.release_plain(digest))
        self.exported.discard(digest)

    @rule()
    def restart(self) -> None:
        for staging in self.active.values():
            self.run(staging.end())
        self.active.clear()
        self.run(self.stagings.close())
        self.store.close()
        self.open()

    @rule()
    def kill(self) -> None:
        for staging in self.active.values():  # what a kill closes; nothing is written by it
            assert staging._writer is not None
            staging._writer.close()
            staging._received.close()
            staging._gate.close()
        self.active.clear()
        self.run(self.stagings.close())
        self.store.close()
        self.open()

    @invariant()
    def accounting_is_exact(self) -> None:
        extents = self.store.extents()
        room = Allocator(LIMIT)
        for extent in extents:
            room.take(extent)  # raises for an overlap
        usage = self.store.usage()
        infos = self.store.revisions()
        plain = sum(entry.extent.size for entry in self.store._state.plain.values())
        assert usage.limit == LIMIT
        assert usage.used == sum(info.size_bytes for info in infos) + plain
        assert usage.used + usage.reserved == room.taken_bytes()
        assert usage.used + usage.reserved + sum(hole.size for hole in room.holes()) == LIMIT
        assert usage.in_use == plain + sum(info.size_bytes for info in infos if info.in_use)
        assert usage.largest_free == room.largest_free()
        assert {info.digest for info in infos if info.in_use} == {
            info.digest for info in infos if info.digest in self.held | self.exported
        }

    @invariant()
    def nothing_sent_is_forgotten(self) -> None:
        reserved = {entry.fingerprint for entry in self.store.stagings()}
        assert reserved == {ADAPTERS[number].fingerprint for number in self.sent}

    @invariant()
    def disk_and_memory_agree(self) -> None:
        assert index.load(self.volume, LIMIT) == self.store._state
        names = {path.name for path in (self.volume / "revisions").iterdir()}
        assert names == {hex_of(info.digest) for info in self.store.revisions()}
        names = {path.name for path in (self.volume / "staging").iterdir()}
        assert names == {entry.staging_id for entry in self.store.stagings()}
        names = {path.name for path in (self.volume / "plain").iterdir()}
        assert names == {hex_of(digest) for digest in self.exported}
        lent = sum(entry.extent.size for entry in self.store._state.plain.values())
        assert (self.volume / "arena").stat().st_blocks * 512 == LIMIT - lent

    @invariant()
    def bytes_are_right(self) -> None:
        for entry in self.store._state.revisions.values():
            image = self.store.arena.view[entry.extent.offset :][: entry.image_bytes]
            assert hashlib.sha256(image).hexdigest() == self.image_hashes[entry.digest]


TestStoreLife = StoreLife.TestCase
TestStoreLife.settings = settings(
    max_examples=25,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
