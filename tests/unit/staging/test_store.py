"""What a store promises to the agent: holds, eviction, damage, plain files, its own table."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING

import pytest
from lorafleet.errors import StagingFull, TooLarge
from lorafleet_sidecar import index, plain
from lorafleet_sidecar.allocator import ALIGNMENT, Extent
from lorafleet_sidecar.arena import ArenaError
from lorafleet_sidecar.paths import hex_of
from lorafleet_sidecar.store import MAX_SOURCES, RevisionStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

M = ALIGNMENT
LIMIT = 8 * M


@pytest.fixture
def store(volume: Path) -> Iterator[RevisionStore]:
    opened = RevisionStore.open(volume, LIMIT)
    opened.set_holds(())
    yield opened
    opened.close()


def digest_of(letter: str) -> str:
    return "sha256:" + letter * 64


def add(store: RevisionStore, letter: str, extents: int = 2) -> str:
    """Commit a revision of `extents` * 2 MiB without a transfer; return its digest."""
    digest, size = digest_of(letter), extents * M - 1000

    def prepare(entry: index.StagingEntry) -> None:
        (store.volume / "staging" / entry.staging_id).mkdir()

    entry = store.reserve(f"source-{letter}", size, prepare)
    directory = store.volume / "revisions" / hex_of(digest)
    directory.mkdir()
    facts = {
        "digest": digest,
        "extent_offset": entry.extent.offset,
        "extent_bytes": entry.extent.size,
    }
    (directory / "revision.json").write_text(json.dumps(facts))
    (directory / "adapter_config.json").write_text("{}")
    store.arena.view[entry.extent.offset : entry.extent.offset + 4] = letter.encode() * 4
    revision = index.RevisionEntry(
        digest=digest, extent=entry.extent, image_bytes=size, rank=8, adapter=f"team/{letter}",
        notes=(), sources={f"source-{letter}": "key"},
    )  # fmt: skip
    store.commit(entry.staging_id, revision)
    return digest


def digests(store: RevisionStore) -> list[str]:
    return [info.digest[-1] for info in store.revisions()]


def reopened(store: RevisionStore) -> RevisionStore:
    store.close()
    return RevisionStore.open(store.volume, LIMIT)


def test_revisions_come_least_recently_used_first(store: RevisionStore) -> None:
    for letter in "abc":
        add(store, letter)
    assert digests(store) == ["a", "b", "c"]
    store.hold(digest_of("a"))
    assert digests(store) == ["b", "c", "a"]
    assert store.find_source("source-b", "key") == store.find(digest_of("b"))
    assert store.find_source("source-b", "another dtype") is None
    assert digests(store) == ["c", "a", "b"]


def test_the_least_recently_used_goes_when_room_is_wanted(store: RevisionStore) -> None:
    for letter in "abcd":
        add(store, letter)
    add(store, "e")
    assert digests(store) == ["b", "c", "d", "e"]
    assert not (store.volume / "revisions" / hex_of(digest_of("a"))).exists()


def test_what_the_engine_reads_never_goes(store: RevisionStore) -> None:
    for letter in "abcd":
        store.hold(add(store, letter))
    before = store.usage()
    assert (before.used, before.in_use, before.largest_free) == (LIMIT, LIMIT, 0)
    with pytest.raises(StagingFull, match="staging volume full: 16 MiB of 16 MiB used, need 4 MiB"):
        add(store, "e")
    assert not store.drop(digest_of("a"))
    assert store.usage() == before
    store.release(digest_of("c"))
    add(store, "e")
    assert digests(store) == ["a", "b", "d", "e"]


def test_until_the_engine_is_known_everything_counts_as_read(store: RevisionStore) -> None:
    for letter in "abcd":
        add(store, letter)
    again = reopened(store)
    assert all(info.in_use for info in again.revisions())
    with pytest.raises(StagingFull):
        add(again, "e")
    assert not again.drop(digest_of("a"))
    again.set_holds({digest_of("a")})
    add(again, "e")
    assert digests(again) == ["a", "c", "d", "e"]
    again.close()


def test_one_content_written_again_and_again_keeps_the_newest_sources_and_no_more_room(
    store: RevisionStore,
) -> None:
    digest = add(store, "a", 1)
    for attempt in range(MAX_SOURCES + 5):
        source = f"touched-{attempt}"
        entry = store.reserve(
            source, M, lambda made: (store.volume / "staging" / made.staging_id).mkdir()
        )
        again = index.RevisionEntry(digest, entry.extent, M, 8, "team/a", (), {source: "key"})
        store.commit(entry.staging_id, again)
    assert store.usage().used == M
    assert store.find_source("source-a", "key") is None
    assert store.find_source("touched-4", "key") is None
    for attempt in range(5, MAX_SOURCES + 5):
        assert store.find_source(f"touched-{attempt}", "key") is not None


def test_what_never_fits_is_no_matter_of_waiting(store: RevisionStore) -> None:
    with pytest.raises(TooLarge, match=f"the arena holds {LIMIT}"):
        add(store, "a", extents=9)
    assert store.extents() == []


def test_a_reservation_whose_files_cannot_be_written_is_none(store: RevisionStore) -> None:
    kept = add(store, "a", extents=8)

    def prepare(entry: index.StagingEntry) -> None:
        raise OSError("no room for files")

    with pytest.raises(OSError, match="no room"):
        store.reserve("source", M, prepare)
    assert digests(store) == [kept[-1]]
    assert store.usage().reserved == 0


def test_the_agents_table_survives(store: RevisionStore) -> None:
    assert store.published is None
    store.set_published({"team-a/sql": {2: "two", 10: "ten"}})
    again = reopened(store)
    assert again.published == {"team-a/sql": {"2": "two", "10": "ten"}}
    again.close()


def test_watchers_are_told_of_each_change(store: RevisionStore) -> None:
    seen = [store.changes.sequence]

    def changed() -> bool:
        seen.append(store.changes.sequence)
        return seen[-1] > seen[-2]

    digest = add(store, "a")
    assert changed()
    store.hold(digest)
    assert changed()
    store.set_holds({digest})
    assert not changed()
    store.release(digest)
    assert changed()
    store.drop(digest)
    assert changed()


async def test_a_watcher_that_waits_wakes_up(store: RevisionStore) -> None:
    waiting = asyncio.create_task(store.changes.wait(store.changes.sequence))
    await asyncio.sleep(0)
    assert not waiting.done()
    add(store, "a")
    assert await waiting > 0


def test_a_damaged_index_gives_an_empty_store_that_overwrites_nothing(
    store: RevisionStore, caplog: pytest.LogCaptureFixture
) -> None:
    read, unread = add(store, "a"), add(store, "b")
    store.set_holds({read})
    path = store.volume / "index.json"
    path.write_bytes(path.read_bytes()[:-20])
    with caplog.at_level(logging.WARNING):
        again = reopened(store)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert again.revisions() == []
    assert again.usage().in_use == 4 * M
    assert again.extents() == [Extent(0, 2 * M), Extent(2 * M, 2 * M)]
    again = reopened(again)  # the quarantine outlives another restart
    assert again.extents() == [Extent(0, 2 * M), Extent(2 * M, 2 * M)]
    again.set_holds({read})
    assert again.extents() == [Extent(0, 2 * M)]
    assert not (again.volume / "revisions" / hex_of(unread)).exists()
    add(again, "c", extents=6)
    assert bytes(again.arena.view[:4]) == b"aaaa"
    again.set_holds(())
    assert again.extents() == [Extent(2 * M, 6 * M)]
    again.close()


def test_a_revision_that_lost_its_files_is_staged_again(
    store: RevisionStore, caplog: pytest.LogCaptureFixture
) -> None:
    digest = add(store, "a")
    add(store, "b")
    (store.revision_dir(digest) / "revision.json").unlink()
    with caplog.at_level(logging.WARNING):
        again = reopened(store)
    assert digests(again) == ["b"]
    assert again.usage().used == 2 * M
    assert "has lost its files" in caplog.text
    again.close()


def test_leftovers_that_the_index_does_not_name_are_removed(store: RevisionStore) -> None:
    for name in ("revisions/" + "9" * 64, "staging/" + "9" * 32, "plain/.9.partial"):
        (store.volume / name).mkdir()
        (store.volume / name / "file").write_text("x")
    again = reopened(store)
    for name in ("revisions", "staging", "plain"):
        assert list((again.volume / name).iterdir()) == []
    again.close()


def test_a_limit_of_less_than_one_extent_is_refused(volume: Path) -> None:
    with pytest.raises(ArenaError):
        RevisionStore.open(volume, M - 1)


async def test_plain_files_take_exactly_their_extent_and_are_readable(
    store: RevisionStore,
) -> None:
    digest = add(store, "a")
    path = await store.export_plain(digest)
    assert await store.export_plain(digest) == path
    model = path / "adapter_model.safetensors"
    image = store.arena.view[: 2 * M - 1000]
    assert model.read_bytes() == bytes(image)
    assert (path / "adapter_config.json").read_text() == "{}"
    assert path.stat().st_mode & 0o777 == 0o755
    assert {file.stat().st_mode & 0o777 for file in path.iterdir()} == {0o644}
    blocks = sum(file.stat().st_blocks * 512 for file in [*path.iterdir(), store.arena.path])
    assert blocks <= LIMIT
    usage = store.usage()
    assert (usage.used, usage.in_use) == (2 * M + 3 * M, 5 * M)
    assert not store.drop(digest)
    await store.release_plain(digest)
    await store.release_plain(digest)
    assert not path.exists()
    assert store.usage().used == 2 * M
    assert store.arena.path.stat().st_blocks * 512 == LIMIT
    assert store.drop(digest)


async def test_plain_files_that_do_not_fit_change_nothing(store: RevisionStore) -> None:
    digest = add(store, "a", extents=5)
    before = store.usage()
    with pytest.raises(StagingFull):
        await store.export_plain(digest)
    with pytest.raises(KeyError):
        await store.export_plain(digest_of("f"))
    assert store.usage() == before
    assert store.plain_exports() == []


async def test_an_export_goes_on_when_its_caller_is_cancelled(store: RevisionStore) -> None:
    digest = add(store, "a")
    exporting = asyncio.create_task(store.export_plain(digest))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    exporting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await exporting
    path = await store.export_plain(digest)
    assert (path / "adapter_model.safetensors").stat().st_size == 2 * M - 1000


async def test_an_export_that_fails_gives_its_space_back(store: RevisionStore) -> None:
    digest = add(store, "a")
    (store.revision_dir(digest) / "adapter_config.json").unlink()
    with pytest.raises(FileNotFoundError):
        await store.export_plain(digest)
    assert store.usage().used == 2 * M
    assert store.arena.path.stat().st_blocks * 512 == LIMIT
    assert list((store.volume / "plain").iterdir()) == []


async def test_plain_files_survive_a_restart(store: RevisionStore) -> None:
    digest = add(store, "a")
    path = await store.export_plain(digest)
    again = reopened(store)
    assert again.plain_exports() == [digest]
    assert again.arena.path.stat().st_blocks * 512 == LIMIT - 3 * M
    await again.release_plain(digest)
    assert not path.exists()
    assert again.arena.path.stat().st_blocks * 512 == LIMIT
    again.close()


@pytest.mark.parametrize("after", ["index", "punch", "half of the files", "all but the rename"])
def test_a_kill_inside_of_an_export_takes_it_back(store: RevisionStore, after: str) -> None:
    digest = add(store, "a")
    extent = Extent(2 * M, 3 * M)
    store._state.plain[digest] = index.PlainEntry(digest, extent)
    index.replace(store.volume, store._state)
    partial = plain.directory(store.volume, digest)
    partial = partial.with_name(f".{partial.name}.partial")
    if after != "index":
        store.arena.punch(extent)
    if after in ("half of the files", "all but the rename"):
        partial.mkdir()
        (partial / "adapter_config.json").write_text("{}")
    if after == "all but the rename":
        (partial / "adapter_model.safetensors").write_bytes(bytes(2 * M))
    again = reopened(store)
    assert again.plain_exports() == []
    assert again.usage().used == 2 * M
    assert again.arena.path.stat().st_blocks * 512 == LIMIT
    assert list((again.volume / "plain").iterdir()) == []
    again.close()


@pytest.mark.parametrize("after", ["files", "pages"])
def test_a_kill_inside_of_a_release_finishes_it(store: RevisionStore, after: str) -> None:
    digest = add(store, "a")
    path = asyncio.run(store.export_plain(digest))
    [entry] = store._state.plain.values()
    if after == "files":
        for file in path.iterdir():
            file.unlink()
    else:
        plain.remove(store.volume, store.arena, digest, entry.extent)
    again = reopened(store)
    assert again.plain_exports() == []
    assert again.usage().used == 2 * M
    assert again.arena.path.stat().st_blocks * 512 == LIMIT
    again.close()
