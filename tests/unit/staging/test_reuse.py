"""What an earlier revision has is copied within the arena: the image is that of a whole transfer."""

from __future__ import annotations

import hashlib
import json
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lorafleet.frames import ChunkFrame
from lorafleet.header import parse_header
from lorafleet_sidecar.staging import ActiveStaging, Stagings
from lorafleet_sidecar.store import RevisionStore
from moe_sources import EXPERTS_ADAPTER, EXPERTS_PROFILE
from staging_builders import changed, digests, engine_profile, source_adapter

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

    from lorafleet.profile import EngineProfile
    from lorafleet_sidecar.store import StagedRevisionInfo
    from staging_builders import SourceAdapter

CHUNK = 64 << 10
DENSE = source_adapter(1, layers=3)
WIDE = source_adapter(1, layers=3, dtype="F32")
TENSORS = len(parse_header(DENSE.header).tensors)
KINDS = {
    "as it is": (DENSE, engine_profile(3)),
    "cast": (WIDE, engine_profile(3)),
    "experts side by side, one narrower, one missing": (EXPERTS_ADAPTER, EXPERTS_PROFILE),
}


@dataclass
class Arena:
    """Stagings over memory that is full of another's bytes; counts what is sent."""

    store: RevisionStore
    stagings: Stagings
    profile: EngineProfile

    async def bring(
        self, adapter: SourceAdapter, cuts: Sequence[int] = (), **changes: Any
    ) -> tuple[StagedRevisionInfo, int]:
        """Stage the adapter; return the revision, and the bytes that were asked for."""
        fields = {"tensor_digests": digests(adapter), "cut_before": cuts, **changes}
        plan = adapter.cuts(CHUNK, fields["cut_before"])
        manifest = adapter.manifest(CHUNK, **fields)
        staging = await self.stagings.begin(manifest.SerializeToString(), self.profile)
        assert isinstance(staging, ActiveStaging)
        try:
            await staging.open()
            missing = staging.missing()
            for index in missing:
                offset, crc32c, data = adapter.chunk(*plan[index])
                await staging.write(ChunkFrame(offset, crc32c, memoryview(data)))
            revision = await staging.commit()
        finally:
            await staging.end()
        return revision, sum(plan[index][1] for index in missing)

    def content(self, revision: StagedRevisionInfo) -> tuple[bytes, dict[str, Any]]:
        """Return the revision's image, and all that its file says but where it lies."""
        with self.store.lent(revision.digest) as image:
            copied = bytes(image)
        text = (self.store.revision_dir(revision.digest) / "revision.json").read_bytes()
        facts = json.loads(text)
        return copied, {k: v for k, v in facts.items() if not k.endswith("_offset")}


@contextmanager
def arena(volume: Path, profile: EngineProfile, limit: int = 32 << 20) -> Iterator[Arena]:
    volume.mkdir(exist_ok=True)
    store = RevisionStore.open(volume, limit)
    store.set_holds(())
    store.arena.view[:] = b"\xff" * limit
    try:
        yield Arena(store, Stagings(store), profile)
    finally:
        store.close()


def borders(tensors: Collection[int]) -> list[int]:
    """Return the cuts around changed tensors."""
    return sorted({each for t in tensors for each in (t, t + 1) if each < TENSORS})


@pytest.mark.parametrize("kind", KINDS)
async def test_only_what_changed_is_asked_for_and_the_image_is_that_of_a_whole_transfer(
    volume: Path, kind: str
) -> None:
    adapter, profile = KINDS[kind]
    tensors = parse_header(adapter.header).tensors
    one = len(tensors) - 2
    newer = changed(adapter, [one])
    with arena(volume / "one", profile) as there:
        _, sent = await there.bring(adapter)
        assert sent == len(adapter.data)
        revision, sent = await there.bring(newer, [one, one + 1])
        assert sent == tensors[one].end - tensors[one].begin
        assert there.stagings.reused_bytes == len(adapter.data) - sent
        assert there.stagings.received_bytes == len(adapter.data) + sent
        found = there.content(revision)
        await there.stagings.close()
    with arena(volume / "whole", profile) as there:
        revision, _ = await there.bring(newer, tensor_digests=())
        assert found == there.content(revision)
        await there.stagings.close()


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sets(st.integers(0, TENSORS - 1), min_size=1, max_size=4), min_size=1, max_size=3),
    st.sets(st.integers(0, TENSORS - 1)),
)
async def test_any_changes_and_cuts_give_the_image_of_a_whole_transfer(
    tmp_path_factory: pytest.TempPathFactory, steps: list[set[int]], cuts: set[int]
) -> None:
    volume = tmp_path_factory.mktemp("any")
    with arena(volume / "one", engine_profile(3)) as there:
        adapter = DENSE
        await there.bring(adapter)
        for number, tensors in enumerate(steps):
            before, adapter = adapter, changed(adapter, tensors, seed=100 + number)
            revision, sent = await there.bring(adapter, sorted(cuts))
            new = sum(t.end - t.begin for t in _entries(adapter, before))
            assert new <= sent <= len(adapter.data)
        found = there.content(revision)
        await there.stagings.close()
    with arena(volume / "whole", engine_profile(3)) as there:
        revision, _ = await there.bring(adapter, tensor_digests=())
        assert found == there.content(revision)
        await there.stagings.close()


def _entries(adapter: SourceAdapter, before: SourceAdapter) -> list[Any]:
    pairs = zip(
        digests(adapter), digests(before), parse_header(adapter.header).tensors, strict=True
    )
    return [tensor for now, then, tensor in pairs if now != then]


async def test_a_base_that_is_damaged_is_not_used(volume: Path) -> None:
    newer = changed(DENSE, [0])
    with arena(volume, engine_profile(3)) as there:
        base, _ = await there.bring(DENSE)
        with there.store.lent(base.digest) as image:
            image[-1] ^= 1
        revision, sent = await there.bring(newer, [1])
        assert sent == len(DENSE.data)
        found = there.content(revision)[0]
        assert hashlib.sha256(found[-len(newer.data) :]).digest() == (
            hashlib.sha256(newer.data).digest()
        )
        await there.stagings.close()


async def test_a_base_that_gives_way_to_what_comes_is_not_used(volume: Path) -> None:
    with arena(volume, engine_profile(3), limit=2 << 20) as there:
        await there.bring(DENSE)
        revision, sent = await there.bring(changed(DENSE, [0]), [1])
        assert sent == len(DENSE.data)
        assert [each.digest for each in there.store.revisions()] == [revision.digest]
        await there.stagings.close()


OTHERS = {
    "another adapter's": (replace(DENSE, name="team-b/theirs"), {}),
    "one whose tensors nobody named": (DENSE, {"tensor_digests": ()}),
    "one with another config": (replace(DENSE, config=DENSE.config + b" "), {}),
}


@pytest.mark.parametrize("which", OTHERS)
async def test_nothing_is_taken_of_what_is_not_known_to_be_alike(volume: Path, which: str) -> None:
    base, manifest = OTHERS[which]
    with arena(volume, engine_profile(3)) as there:
        await there.bring(base, **manifest)
        _, sent = await there.bring(changed(DENSE, [0]), [1])
        assert sent == len(DENSE.data)
        await there.stagings.close()


async def test_nothing_is_taken_where_the_source_is_compared_as_a_whole(volume: Path) -> None:
    with arena(volume, engine_profile(3)) as there:
        await there.bring(DENSE)
        _, sent = await there.bring(changed(DENSE, [0]), [1], whole=True)
        assert sent == len(DENSE.data)
        await there.stagings.close()


async def test_what_an_older_sidecar_has_staged_is_not_used(volume: Path) -> None:
    with arena(volume, engine_profile(3)) as there:
        base, _ = await there.bring(DENSE)
        file = there.store.revision_dir(base.digest) / "revision.json"
        facts = json.loads(file.read_bytes())
        for module in facts["modules"].values():
            del module["sha256"]
        file.write_text(json.dumps(facts))
        _, sent = await there.bring(changed(DENSE, [0]), [1])
        assert sent == len(DENSE.data)
        await there.stagings.close()


@pytest.mark.parametrize("order", [1, -1])
async def test_the_revision_with_most_in_common_is_the_base(volume: Path, order: int) -> None:
    bases = [changed(DENSE, [3], seed=101), changed(DENSE, [3, 5, 7], seed=102)]
    with arena(volume, engine_profile(3)) as there:
        for base in bases[::order]:
            await there.bring(base)
        _, sent = await there.bring(changed(DENSE, [3], seed=103), borders([3, 5, 7]))
        [tensor] = _entries(changed(DENSE, [3]), DENSE)
        assert sent == tensor.end - tensor.begin
        await there.stagings.close()


async def test_a_base_that_has_too_little_is_not_read(volume: Path) -> None:
    with arena(volume, engine_profile(3)) as there:
        await there.bring(DENSE)
        most = range(TENSORS // 2 + 1)
        _, sent = await there.bring(changed(DENSE, most), [len(most)])
        assert sent == len(DENSE.data)
        await there.stagings.close()
