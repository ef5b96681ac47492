"""A transfer that is broken off and resumed ends with the same bytes as one in a single go."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from lorafleet.errors import StagingFull
from lorafleet.frames import ChunkFrame
from lorafleet_sidecar.staging import ActiveStaging, Stagings
from lorafleet_sidecar.store import RevisionStore
from moe_sources import EXPERTS_ADAPTER as ADAPTER
from moe_sources import EXPERTS_PROFILE as PROFILE
from moe_sources import RANK, RANKS, SHAPES, some_experts
from staging_builders import SourceAdapter, source_adapter

if TYPE_CHECKING:
    from pathlib import Path

CUTS = ADAPTER.cuts()


async def image_after(volume: Path, breaks: list[int]) -> bytes:
    """Stage ADAPTER over dirty memory, broken off after each of `breaks` chunks."""
    store = RevisionStore.open(volume, 8 << 20)
    store.set_holds(())
    store.arena.view[:] = b"\xff" * (8 << 20)
    stagings = Stagings(store)
    raw = ADAPTER.manifest().SerializeToString()
    for count in [*breaks, len(CUTS)]:
        staging = await stagings.begin(raw, PROFILE)
        assert isinstance(staging, ActiveStaging)
        await staging.open()
        for index in staging.missing()[:count]:
            offset, crc32c, data = ADAPTER.chunk(*CUTS[index])
            await staging.write(ChunkFrame(offset, crc32c, memoryview(data)))
        if not staging.missing():
            await staging.commit()
        await staging.end()
    [extent] = store.extents()
    image = bytes(store.arena.view[extent.offset : extent.end])
    await stagings.close()
    store.close()
    return image


@pytest.mark.parametrize("breaks", [[0], [1], [2, 1], [0, 3, 0, 1]])
async def test_a_break_changes_no_byte(volume: Path, breaks: list[int]) -> None:
    assert len(CUTS) == 5
    whole, broken = volume / "whole", volume / "broken"
    whole.mkdir()
    broken.mkdir()
    assert await image_after(broken, breaks) == await image_after(whole, [])


def renamed(*names: str) -> SourceAdapter:
    """ADAPTER's tensors once for each name, as a file that holds several adapters."""
    one = some_experts(0, 2, 3)
    both = {
        key.replace(".weight", f".{name}.weight"): values + index
        for index, name in enumerate(names)
        for key, values in one.items()
    }
    return source_adapter(
        7,
        layers=0,
        rank=RANK,
        replace=both,
        rank_pattern={f"experts.3.{name}": RANKS[3] for name in SHAPES},
    )


async def test_another_choice_of_the_same_file_does_not_go_on_where_the_last_one_broke(
    volume: Path,
) -> None:
    store = RevisionStore.open(volume, 32 << 20)
    store.set_holds(())
    stagings = Stagings(store)
    adapter = renamed("default", "reference")
    ids = []
    for name in ("default", "reference", "reference"):
        raw = adapter.manifest(adapter_name=name).SerializeToString()
        staging = await stagings.begin(raw, PROFILE)
        assert isinstance(staging, ActiveStaging)
        await staging.open()
        left = len(staging.missing())
        assert left == len(adapter.cuts()) - (name in [known for known, _ in ids])
        offset, crc32c, data = adapter.chunk(*adapter.cuts()[staging.missing()[0]])
        await staging.write(ChunkFrame(offset, crc32c, memoryview(data)))
        ids.append((name, staging.staging_id))
        await staging.end()
    assert ids[1][1] == ids[2][1] != ids[0][1]
    await stagings.close()
    store.close()


async def test_what_a_break_left_gives_way_to_what_has_no_room_without_it(volume: Path) -> None:
    first = ADAPTER
    others = [replace(first, fingerprint=f"another {number}") for number in range(3)]
    store = RevisionStore.open(volume, 4 << 20)  # two of them
    store.set_holds(())
    stagings = Stagings(store)

    async def begin(adapter: SourceAdapter) -> ActiveStaging:
        found = await stagings.begin(adapter.manifest().SerializeToString(), PROFILE)
        assert isinstance(found, ActiveStaging)
        await found.open()
        return found

    broken = await begin(first)
    await broken.end()
    going = await begin(others[0])
    kept = {entry.fingerprint for entry in store.stagings()}
    assert kept == {first.fingerprint, "another 0"}, "there is room for both"
    more = await begin(others[1])
    assert {entry.fingerprint for entry in store.stagings()} == {"another 0", "another 1"}
    with pytest.raises(StagingFull):
        await begin(others[2])
    for each in (going, more):
        await each.end()
    await stagings.close()
    store.close()
