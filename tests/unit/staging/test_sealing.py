"""Tensors are sealed as they become complete: never before, each once, to what a seal at the end says."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest
from counting_threads import Counting
from hypothesis import given, settings
from hypothesis import strategies as st
from lorafleet.frames import ChunkFrame
from lorafleet_sidecar import commit, sealing
from lorafleet_sidecar.allocator import ALIGNMENT, Extent
from lorafleet_sidecar.arena import Arena
from lorafleet_sidecar.chunk_writer import ChunkWriter
from lorafleet_sidecar.packed import Feeding, packed_tensors
from lorafleet_sidecar.staging import ActiveStaging, Stagings
from lorafleet_sidecar.staging_dir import StagingDirectory
from lorafleet_sidecar.staging_plan import StagingPlan
from lorafleet_sidecar.store import RevisionStore
from moe_sources import EXPERTS_ADAPTER, EXPERTS_PROFILE
from staging_builders import SourceAdapter, engine_profile, source_adapter
from waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from lorafleet.profile import EngineProfile
    from lorafleet_sidecar.packed import Key
    from lorafleet_sidecar.received import ReceivedMap

EXTENT = Extent(ALIGNMENT, 2 * ALIGNMENT)
CHUNK = 64 << 10
DENSE = source_adapter(1, layers=3)
KINDS: dict[str, tuple[SourceAdapter, EngineProfile]] = {
    "as it is": (DENSE, engine_profile(3)),
    "cast": (source_adapter(1, layers=2, dtype="F32"), engine_profile()),
    "experts side by side, one narrower, one missing": (EXPERTS_ADAPTER, EXPERTS_PROFILE),
}


@dataclass
class Scene:
    """One transfer into memory that is full of another's bytes."""

    plan: StagingPlan
    arena: Arena
    received: ReceivedMap
    writer: ChunkWriter
    adapter: SourceAdapter
    hashing: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(2))

    def sealing(self) -> sealing.Sealing:
        """Return one that has seen nothing, as after a restart."""
        return sealing.Sealing(self.plan, self.arena, EXTENT, self.hashing)

    def write(self, index: int) -> None:
        """Bring one chunk, by a writer with a map of its own."""
        offset, crc32c, data = self.adapter.chunk(*self.plan.chunks[index])
        self.writer.write(ChunkFrame(offset, crc32c, memoryview(data)))

    def fed_by(self, *chunks: int) -> set[Key]:
        """Return what these chunks feed."""
        feeding = Feeding(self.plan.layout)
        return {key for index in chunks for key in feeding.fed_by(*self.plan.chunks[index])}

    def seal(self, known: dict[Key, sealing.Sealed] | None = None) -> sealing.Seal:
        """Seal the complete image."""
        return sealing.seal(
            self.arena, EXTENT, self.plan.layout, self.hashing, "team-a/sql", known or {}
        )


@contextmanager
def scene(volume: Path, adapter: SourceAdapter, profile: EngineProfile) -> Iterator[Scene]:
    raw = adapter.manifest(CHUNK).SerializeToString()
    plan = StagingPlan.make(raw, profile, 1 << 30)
    assert plan.image_bytes <= EXTENT.size
    arena = Arena.create_or_open(volume, 4 * ALIGNMENT)
    arena.view[:] = b"\xff" * (4 * ALIGNMENT)
    directory = StagingDirectory.create(volume, "0" * 32, EXTENT, plan, profile)
    gate, received = directory.gate(), directory.received()
    commit.clear(arena, EXTENT, plan.layout)
    gate.open()
    writer = ChunkWriter(directory, plan, arena)
    made = Scene(plan, arena, received, writer, adapter)
    yield made
    made.hashing.shutdown()
    for each in (writer, gate, received, arena):
        each.close()


@pytest.fixture
def dense(volume: Path) -> Iterator[Scene]:
    with scene(volume, *KINDS["as it is"]) as made:
        yield made


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_in_any_order_the_seal_is_that_of_the_end(kind: str, data: st.DataObject) -> None:
    with TemporaryDirectory(dir="/dev/shm") as folder, scene(Path(folder), *KINDS[kind]) as made:
        chunks = range(len(made.plan.chunks))
        order = data.draw(st.permutations(chunks))
        looks = data.draw(st.sets(st.sampled_from(chunks)))
        early = made.sealing()
        for turn, index in enumerate(order):
            made.write(index)
            if turn in looks:
                early.look(made.received)
                # What lay there before would be hashed with it.
                assert early.results().keys() == (
                    packed_tensors(made.plan.layout).keys() - made.fed_by(*order[turn + 1 :])
                )
        early.look(made.received)
        found, whole = early.results(), made.seal()
        assert found.keys() == packed_tensors(made.plan.layout).keys()
        assert made.seal(found) == whole


def test_the_first_tensor_waits_for_its_last_chunk(dense: Scene) -> None:
    last, early = dense.fed_by(0), dense.sealing()
    for index in range(1, len(dense.plan.chunks)):
        dense.write(index)
        early.look(dense.received)
    assert 0 < len(last) < len(early.results())
    assert early.results().keys().isdisjoint(last)
    dense.write(0)
    assert early.results().keys().isdisjoint(last)
    early.look(dense.received)
    assert early.results().keys() >= last
    assert dense.seal(early.results()) == dense.seal()


def test_a_chunk_that_somebody_still_writes_is_not_read(dense: Scene) -> None:
    early = dense.sealing()
    with dense.writer._received.claim(0):
        dense.received.note([0])  # as seen from another core, out of order
        early.look(dense.received)
        assert early.results() == {}
    early.look(dense.received)
    assert early.results().keys() == dense.fed_by(0)


def test_what_is_known_is_not_read(dense: Scene) -> None:
    early, known = dense.sealing(), dense.fed_by(1)
    for index in range(len(dense.plan.chunks)):
        dense.write(index)
    early.look(dense.received, known)
    assert early.results().keys() == packed_tensors(dense.plan.layout).keys() - known


def test_what_was_not_read_yet_when_a_transfer_breaks_never_is(dense: Scene) -> None:
    for index in range(len(dense.plan.chunks)):
        dense.write(index)
    early, go_on = dense.sealing(), threading.Event()
    for _ in range(2):
        dense.hashing.submit(go_on.wait)
    early.look(dense.received)
    early.drop()  # returns: nothing of it is at work
    dense.arena.view[:] = b"\xff" * len(dense.arena.view)
    go_on.set()
    assert early.results() == {}


@dataclass
class Sidecar:
    """Stagings that count what they hash."""

    store: RevisionStore
    stagings: Stagings
    hashing: Counting

    async def begin(self, adapter: SourceAdapter) -> ActiveStaging:
        """Begin, or go on with, the transfer of an adapter."""
        raw = adapter.manifest(CHUNK).SerializeToString()
        staging = await self.stagings.begin(raw, engine_profile(3))
        assert isinstance(staging, ActiveStaging)
        await staging.open()
        return staging

    async def hashed(self, count: int) -> None:
        """Wait until so many tensors are hashed or waiting for it since the last time."""
        await until(lambda: self.hashing.count == count)
        self.hashing.count = 0


@pytest.fixture
async def sidecar(volume: Path) -> AsyncIterator[Sidecar]:
    store = RevisionStore.open(volume, 32 << 20)
    store.set_holds(())
    stagings = Stagings(store)
    stagings.hashing.shutdown()
    stagings.hashing = Counting(2)
    yield Sidecar(store, stagings, stagings.hashing)
    await stagings.close()
    store.close()


async def bring(staging: ActiveStaging, adapter: SourceAdapter, chunks: list[int]) -> None:
    for index in chunks:
        offset, crc32c, data = adapter.chunk(*staging.plan.chunks[index])
        await staging.write(ChunkFrame(offset, crc32c, memoryview(data)))


async def test_a_commit_has_only_the_rest_to_read(sidecar: Sidecar) -> None:
    staging = await sidecar.begin(DENSE)
    chunks = staging.missing()
    await bring(staging, DENSE, chunks[:-1])
    await sidecar.hashed(2 * (len(chunks) - 1))  # two tensors of 32 KiB in each
    await bring(staging, DENSE, chunks[-1:])
    revision = await staging.commit()
    await staging.end()
    assert sidecar.hashing.count == 2
    assert revision.digest == await digest_at_once(sidecar)


async def digest_at_once(sidecar: Sidecar) -> str:
    """Return the digest of DENSE by a seal of the whole."""
    folder = sidecar.store.volume / "whole"
    folder.mkdir()
    with scene(folder, *KINDS["as it is"]) as made:
        for index in range(len(made.plan.chunks)):
            made.write(index)
        return made.seal().digest


async def test_a_transfer_that_goes_on_reads_again_what_was_there(sidecar: Sidecar) -> None:
    staging = await sidecar.begin(DENSE)
    await bring(staging, DENSE, [0, 1])
    await sidecar.hashed(4)
    await staging.end()
    staging = await sidecar.begin(DENSE)
    await sidecar.hashed(4)
    await bring(staging, DENSE, staging.missing())
    revision = await staging.commit()
    await staging.end()
    assert sidecar.hashing.count == 8
    assert revision.digest == await digest_at_once(sidecar)
