"""The index file: what is written is read, and anything else is damaged, never a crash."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lorafleet_sidecar import index
from lorafleet_sidecar.allocator import ALIGNMENT, Extent

if TYPE_CHECKING:
    from pathlib import Path

M = ALIGNMENT
LIMIT = 16 * M


def some_state() -> index.IndexState:
    revision = index.RevisionEntry(
        digest="sha256:" + "a" * 64,
        extent=Extent(2 * M, 4 * M),
        image_bytes=4 * M - 100,
        rank=8,
        adapter="team-a/sql",
        notes=("AdapterIsIdentity", "caf\u00e9 \u2028"),
        sources={"s3:etag": "key"},
        used=3,
    )
    return index.IndexState(
        revisions={revision.digest: revision},
        stagings={"f" * 32: index.StagingEntry("f" * 32, "file:1", Extent(0, M))},
        plain={revision.digest: index.PlainEntry(revision.digest, Extent(6 * M, 4 * M))},
        quarantine={"sha256:" + "b" * 64: Extent(12 * M, M)},
        published={"team-a/sql": {"id": 7, "seconds": 0.1}, "z": None},
        uses=3,
    )


def test_what_is_written_is_read(volume: Path) -> None:
    index.replace(volume, some_state())
    assert index.load(volume, LIMIT) == some_state()
    assert [path.name for path in volume.iterdir()] == ["index.json"]


def test_a_new_volume_has_an_empty_index(volume: Path) -> None:
    assert index.load(volume, LIMIT) == index.IndexState()


@given(st.data())
def test_a_torn_file_is_damaged(data: st.DataObject) -> None:
    content = index.serialise(some_state())
    length = data.draw(st.integers(0, len(content) - 1))
    with pytest.raises(index.IndexDamaged):
        index.parse(content[:length], LIMIT)


@given(st.data())
def test_a_changed_byte_is_damage_or_changes_nothing(data: st.DataObject) -> None:
    content = bytearray(index.serialise(some_state()))
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(index.IndexDamaged):
        assert index.parse(bytes(content), LIMIT) == some_state()


@given(st.binary(max_size=300))
def test_any_bytes_are_damage(content: bytes) -> None:
    with pytest.raises(index.IndexDamaged):
        index.parse(content, LIMIT)


def test_extents_that_overlap_are_damage() -> None:
    state = some_state()
    state.quarantine["sha256:" + "c" * 64] = Extent(4 * M, M)
    with pytest.raises(index.IndexDamaged, match="overlaps"):
        index.parse(index.serialise(state), LIMIT)


def test_extents_outside_of_the_arena_are_damage() -> None:
    with pytest.raises(index.IndexDamaged, match="outside the arena"):
        index.parse(index.serialise(some_state()), 8 * M)


def test_damage_gives_one_warning_and_the_file_is_kept_for_a_look(
    volume: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (volume / "index.json").write_bytes(b'{"checksum":')
    with caplog.at_level(logging.WARNING):
        assert index.load(volume, LIMIT) is None
    assert len(caplog.records) == 1
    assert "is damaged" in caplog.records[0].getMessage()
    assert (volume / "index.json.damaged").read_bytes() == b'{"checksum":'
    assert index.load(volume, LIMIT) == index.IndexState()


def test_a_write_that_was_killed_half_way_leaves_the_old_index(volume: Path) -> None:
    index.replace(volume, some_state())
    (volume / ".index.json.partial").write_bytes(b"half")
    assert index.load(volume, LIMIT) == some_state()
