"""What is kept of pushes, whatever order they come in, break, are killed, and push each other out."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from lorafleet.errors import (
    DigestMismatch,
    InvalidAdapter,
    SourceNotFound,
    SourceUnavailable,
    StagingFull,
    TransferInterrupted,
)
from lorafleet_operator.push.incoming import Incoming
from lorafleet_operator.push.shelf import FILE_BYTES, cost, overhead
from lorafleet_operator.push.spool import Spool
from lorafleet_operator.sources.pushed import PART, Place, hex_of, read_places
from spool_builders import REVISIONS, end, push, read, revision, source, spool

if TYPE_CHECKING:
    from collections.abc import Mapping

SIZES = (0, 10, 1000, 30_000, 90_000)
TENSORS = tuple(bytes([number]) * SIZES[number % 5] for number in range(1, 12))


class Pushes(RuleBasedStateMachine):
    """Pushes of three adapters into one spool; each adapter names the revision that came last."""

    KEYS = ("t/a", "t/b", "u/a")
    LIMIT, NAMESPACE = 1_000_000, 600_000

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="spool-"))
        self.spool = spool(self.root, self.LIMIT, self.NAMESPACE)
        self.named: dict[str, tuple[str, bytes]] = {}
        self.going: dict[str, Incoming] = {}

    def teardown(self) -> None:
        self.break_off()
        shutil.rmtree(self.root)

    def break_off(self, keys: tuple[str, ...] = KEYS) -> None:
        for key in keys:
            if (before := self.going.pop(key, None)) is not None:
                end(self.spool, key, before)

    @property
    def wanted(self) -> set[str]:
        return {f"{key}/{hex_of(name)}" for key, (name, _) in self.named.items()}

    @rule(
        key=st.sampled_from(KEYS),
        numbers=st.lists(st.integers(0, len(TENSORS) - 1), max_size=9),
        stop=st.sampled_from([99, 99, 0, 1, 3]),
    )
    def a_trainer_pushes(self, key: str, numbers: list[int], stop: int) -> None:
        tensors = tuple(TENSORS[each] for each in numbers)
        self.break_off((key,))
        made = revision(tensors)
        if self.spool.use_again(key, made):
            self.spool.release(key)
            self.named[key] = (made.revision, b"".join(tensors))
            return
        try:
            incoming = push(self.spool, key, tensors, self.wanted, stop)
        except StagingFull:
            return
        if stop < len(incoming.missing):
            self.going[key] = incoming
            return
        self.named[key] = (made.revision, b"".join(tensors))
        data = self.root / key / "data"
        assert not list(data.glob(f"*{PART}*")), "nothing is left of a push that ended"

    @rule()
    def the_operator_is_killed(self) -> None:
        self.break_off()
        self.spool = spool(self.root, self.LIMIT, self.NAMESPACE)

    @rule(key=st.sampled_from(KEYS))
    def an_adapter_is_deleted(self, key: str) -> None:
        self.named.pop(key, None)
        for _ in range(2):
            self.spool.tidy(set(self.named))
        assert key in self.going or not (self.root / key).exists()

    @rule(key=st.sampled_from(KEYS), chance=st.randoms(use_true_random=False))
    def a_file_that_no_spec_needs_is_lost(self, key: str, chance: random.Random) -> None:
        """As a kill leaves it that comes while a revision is deleted."""
        top = self.root / key / "revisions"
        kept = [each for each in top.glob("*/*") if f"{key}/{each.parent.name}" not in self.wanted]
        if kept and key not in self.going:
            chance.choice(sorted(kept)).unlink()

    @invariant()
    def what_is_named_reads_as_it_was_pushed(self) -> None:
        for key, (name, data) in self.named.items():
            assert read(self.root, key, name) == data

    @invariant()
    def the_disk_holds_no_more_than_it_may(self) -> None:
        held = sum(cost(folder, parts=True) for folder in self.root.glob("*/*"))
        assert held <= self.LIMIT
        assert held <= self.spool.used_bytes() <= self.LIMIT


TestPushes = Pushes.TestCase
TestPushes.settings = settings(
    max_examples=60,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def test_only_what_changed_is_asked_for_and_one_content_once(tmp_path: Path) -> None:
    there = spool(tmp_path)
    one, two, three = (bytes([n]) * 100 for n in (1, 2, 3))
    assert push(there, "t/a", (one, two, one), set()).received_bytes == 200
    assert push(there, "t/a", (one, three, two), set()).received_bytes == 100
    assert push(there, "t/b", (one,), set()).received_bytes == 100, "another's is not told of"


def test_what_is_sent_on_is_cut_where_the_last_push_begins_and_ends(tmp_path: Path) -> None:
    """Also when the new file has what others had: most of the first push's is of no use by then."""
    there = spool(tmp_path)
    tensors = [bytes([number]) * 100 for number in range(7)]
    cuts, lengths = [], []
    for step, new in enumerate([range(7), (1, 2, 5), (2, 6), (0,)]):
        for number in new:
            tensors[number] = bytes([10 * step + number]) * 100
        told = revision(tuple(tensors))
        push(there, "t/a", tuple(tensors), set())
        content = asyncio.run(source(tmp_path, "t/a", told.revision).resolve())
        assert content.tensor_digests == told.digests
        assert read(tmp_path, "t/a", told.revision) == b"".join(tensors)
        cuts.append(content.cut_before)
        lengths.append([segment.length for segment in content.segments])
    assert cuts == [(), (1, 3, 5, 6), (2, 3, 6), (1,)]
    assert lengths[:2] == [[700], [100, 200, 200, 100, 100]], "neighbours are read at once"


def test_disk_is_bounded_however_long_little_changes(tmp_path: Path) -> None:
    there, chance = spool(tmp_path), random.Random(1)
    tensors = [bytes([n]) * 1000 for n in range(20)]
    for step in range(300):
        tensors[chance.randrange(20)] = step.to_bytes(4, "big") * 250
        push(there, "t/a", tuple(tensors), set())
        assert there.used_bytes() <= 2 * REVISIONS * (20_000 + 8 * FILE_BYTES)
    assert read(tmp_path, "t/a", revision(tuple(tensors)).revision) == b"".join(tensors)


class Looked(Spool):
    """Counts how often it is looked through."""

    looks = 0

    def known(self, key: str, sizes: Mapping[bytes, int]) -> dict[bytes, Place]:
        self.looks += 1
        return super().known(key, sizes)


def test_how_often_it_is_looked_through_does_not_depend_on_the_tensors(tmp_path: Path) -> None:
    looks = []
    for count in (4, 40):
        there = Looked(
            tmp_path / f"{count}", limit_bytes=1 << 20, namespace_bytes=1 << 20, revisions=2
        )
        there.look()
        tensors = [bytes([n]) * 100 for n in range(count)]
        push(there, "t/a", tuple(tensors), set())
        push(there, "t/a", (*tensors[1:], b"?" * 100), set())
        looks.append(there.looks)
    assert looks[0] == looks[1]


def test_what_is_not_the_next_piece_and_what_is_another_content_is_refused(tmp_path: Path) -> None:
    there = spool(tmp_path)
    tensors = (b"a" * 100, b"b" * 100)
    for pieces, problem in (
        ([(1, 0, b"b")], "got tensor 1 at 0, expected tensor 0 at 0"),
        ([(0, 0, b"a" * 60), (0, 0, b"a")], "got tensor 0 at 0, expected tensor 0 at 60"),
        ([(0, 0, b"a" * 201)], "got 201 bytes at tensor 0, expected 1 to 200"),
        ([(0, 0, b"")], "got 0 bytes at tensor 0, expected 1 to 200"),
        ([(7, 0, b"a")], "got tensor 7 at 0"),
        ([(0, 0, b"a" * 100), (1, 0, b"b" * 100), (2, 0, b"c")], "expected the end"),
    ):
        incoming = Incoming(there, "t/a", revision(tensors))
        incoming.open(set())
        *right, wrong = pieces
        for piece in right:
            incoming.write(*piece)
        with pytest.raises(TransferInterrupted, match=problem):
            incoming.write(*wrong)
        incoming.close()
        shutil.rmtree(tmp_path / "t")
    incoming = Incoming(there, "t/a", revision(tensors))
    incoming.open(set())
    incoming.write(0, 0, b"x" * 100)
    with pytest.raises(DigestMismatch, match="t0 has digest"):
        incoming.settle()
    with pytest.raises(TransferInterrupted, match="2 of 2 tensors are missing"):
        incoming.commit()
    incoming.close()
    with pytest.raises(SourceNotFound, match="push it again"):
        read(tmp_path, "t/a", revision(tensors).revision)


def price(tensors: tuple[bytes, ...]) -> int:
    return overhead(revision(tensors)) + sum(map(len, tensors))


def test_a_push_without_room_is_refused_before_a_byte_of_it(tmp_path: Path) -> None:
    mib = bytes(1 << 20)
    there = spool(tmp_path, 5 << 20, 3 << 20)
    push(there, "t/a", (b"a" + mib,), set())
    kept = {f"t/a/{hex_of(revision((b'a' + mib,)).revision)}"}
    with pytest.raises(StagingFull, match=r"namespace t has 1\.1 of 3\.0 MiB .* needs 2\.1"):
        push(there, "t/b", (b"b" + 2 * mib,), kept)
    assert not (tmp_path / "t/b").exists()
    push(there, "u/b", (b"c" + 2 * mib,), kept)
    kept |= {f"u/b/{hex_of(revision((b'c' + 2 * mib,)).revision)}"}
    with pytest.raises(StagingFull, match="the operator has 3"):
        push(there, "v/b", (b"d" + 2 * mib,), kept)
    push(there, "t/b", (b"b" + 2 * mib,), set())
    with pytest.raises(SourceNotFound):
        read(tmp_path, "t/a", revision((b"a" + mib,)).revision)


@pytest.mark.parametrize("tensors", [(bytes(100_000),), (b"",) * 500, (b"a", b"b", b"c")])
def test_a_limit_counts_all_that_is_written_to_the_byte(
    tensors: tuple[bytes, ...], tmp_path: Path
) -> None:
    """Also headers, configs and files: revisions of no bytes do not fill a disk with names."""
    enough = price(tensors)
    with pytest.raises(StagingFull):
        push(spool(tmp_path, enough - 1), "t/a", tensors, set())
    there = spool(tmp_path, enough)
    assert push(there, "t/a", tensors, set()).received_bytes == len(b"".join({*tensors}))
    assert 3 * FILE_BYTES < cost(tmp_path / "t/a", parts=True) == there.used_bytes() <= enough


def test_what_another_push_builds_on_is_not_taken_for_room(tmp_path: Path) -> None:
    old, other = tuple(bytes([n]) * 1000 for n in range(5)), (b"x" * 100_000,)
    there = spool(tmp_path, price(old) + price(other))
    push(there, "t/a", old, set())
    new = (*old[:4], b"new")
    going = Incoming(there, "t/a", revision(new))
    going.open(set())
    with pytest.raises(StagingFull):
        push(there, "u/a", other, set())
    going.write(going.missing[0], 0, b"new")
    going.commit()
    end(there, "t/a", going)
    assert read(tmp_path, "t/a", revision(new).revision) == b"".join(new)
    push(there, "u/a", other, set())


def test_a_place_that_goes_for_room_is_looked_for_again_where_the_tensor_lies_too(
    tmp_path: Path,
) -> None:
    """The newer revision with it goes; the older one, which a spec names, has it as well."""
    shared, large = b"s" * 1000, b"l" * 100_000
    older, newer, new = (shared, large), (shared, b"n"), (shared, b"w" * 2000)
    there = spool(tmp_path)
    push(there, "t/a", older, set())
    push(there, "t/a", newer, set())
    folders = [tmp_path / "t/a/revisions" / hex_of(revision(e).revision) for e in (older, newer)]
    assert len({read_places(folder)[0].file for folder in folders}) == 2, "it was moved"
    kept = {f"t/a/{folders[0].name}"}
    room = cost(tmp_path / "t/a", parts=True) + price(new[1:]) - 1
    assert push(spool(tmp_path, room), "t/a", new, kept).missing == [1]
    assert [folder.exists() for folder in folders] == [True, False]
    assert read(tmp_path, "t/a", revision(new).revision) == b"".join(new)


def test_what_is_lost_or_torn_is_asked_for_again(tmp_path: Path) -> None:
    there, tensors = spool(tmp_path), (b"a" * 1000, b"b" * 1000)
    made = revision(tensors)
    folder = tmp_path / "t/a" / "revisions" / hex_of(made.revision)
    push(there, "t/a", tensors, set())
    (data,) = (tmp_path / "t/a/data").iterdir()
    broken = [data, *folder.iterdir()]
    assert len(broken) == 4
    for name in [each.name for each in broken]:
        for size in (None, 0, 777):
            (file,) = [each for each in (tmp_path / "t/a").rglob("*") if each.name == name] or [
                *(tmp_path / "t/a/data").iterdir()
            ]
            if size is None:
                file.unlink()
            elif file.stat().st_size > size:
                os.truncate(file, size)
            else:
                continue
            if file.name != "adapter_config.json" or size is None:  # nobody has read that yet
                with pytest.raises((SourceNotFound, SourceUnavailable, InvalidAdapter)):
                    read(tmp_path, "t/a", made.revision)
            assert not there.use_again("t/a", made), (name, size)
            push(there, "t/a", tensors, set())
            assert read(tmp_path, "t/a", made.revision) == b"".join(tensors)
            assert there.use_again("t/a", made)
            there.release("t/a")
    shutil.rmtree(tmp_path)
    push(there, "t/a", tensors, set())
    assert read(tmp_path, "t/a", made.revision) == b"".join(tensors)


def test_a_broken_push_keeps_its_bytes_for_a_while_and_no_longer(
    tmp_path: Path,
) -> None:
    there, tensors = spool(tmp_path), (b"a" * 1000, b"b" * 1000)
    end(there, "t/a", push(there, "t/a", tensors, set(), stop=1))
    there.tidy({"t/a"})
    assert there.used_bytes() > 1000
    again = Incoming(there, "t/a", revision(tensors))
    again.open(set())
    assert again.missing == [1]
    for each in (tmp_path / "t/a/data").iterdir():
        os.utime(each, (1, 1))
    there.tidy({"t/a"})
    assert len(list((tmp_path / "t/a/data").iterdir())) == 2, "it goes on"
    end(there, "t/a", again)
    there.tidy({"t/a"})
    assert there.used_bytes() == 0
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == []


def test_the_newest_is_what_came_last_whatever_the_clock_says(
    tmp_path: Path,
) -> None:
    there = spool(tmp_path)
    for step in range(10):
        push(there, "t/a", (bytes([step]) * 100,), set())
        for each in (tmp_path / "t/a/revisions").iterdir():
            later = each.stat().st_mtime_ns + 10**12 * (step == 5)
            os.utime(each, ns=(later, later))
    kept = {each.name for each in (tmp_path / "t/a/revisions").iterdir()}
    assert kept == {hex_of(revision((bytes([step]) * 100,)).revision) for step in (8, 9)}


def test_tensors_that_change_one_by_one_do_not_scatter_over_files(tmp_path: Path) -> None:
    there, tensors = spool(tmp_path, 1 << 30, 1 << 30), [bytes([n]) * 10 for n in range(200)]
    for step in range(200):
        tensors[step] = bytes([step]) * 11
        push(there, "t/a", tuple(tensors), set())
    assert len(list((tmp_path / "t/a/data").iterdir())) <= 64 + REVISIONS
    assert read(tmp_path, "t/a", revision(tuple(tensors)).revision) == b"".join(tensors)


def test_what_else_is_on_the_disk_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir(mode=0)
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "NOTES").write_text("mine")
    there = spool(tmp_path)
    push(there, "t/a", (b"a",), set())
    for _ in range(2):
        there.tidy(set())
    assert sorted(each.name for each in tmp_path.rglob("*")) == ["NOTES", "lost+found", "t"]
