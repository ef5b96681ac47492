"""What is kept of pushes, whatever order they come in, break, are killed, and push each other out."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from lorafleet.errors import DigestMismatch, SourceNotFound, StagingFull, TransferInterrupted
from lorafleet_operator.push.incoming import Incoming
from lorafleet_operator.push.revision import PushedRevision, described
from lorafleet_operator.push.spool import PART, Spool
from lorafleet_operator.sources.bounds import SourceSettings
from lorafleet_operator.sources.pushed import PushedSource, hex_of

CONFIG = json.dumps(
    {
        "peft_type": "LORA",
        "base_model_name_or_path": "x",
        "r": 2,
        "lora_alpha": 4,
        "target_modules": ["q_proj"],
    }
).encode()
SIZES = (0, 1, 100, 1000, 3000)
TENSORS = tuple(bytes([number]) * SIZES[number % 5] for number in range(1, 12))
REVISIONS = 2


def revision(tensors: tuple[bytes, ...]) -> PushedRevision:
    header, at = {}, 0
    for number, data in enumerate(tensors):
        end = at + len(data)
        header[f"t{number}"] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [at, end]}
        at = end
    digests = [hashlib.sha256(data).digest() for data in tensors]
    text = json.dumps(header).encode()
    return described(text, CONFIG, digests, adapter="t/a", settings=SourceSettings())


def spool(root: Path, limit: int = 1 << 20, namespace: int = 1 << 20) -> Spool:
    return Spool(root, limit_bytes=limit, namespace_bytes=namespace, revisions=REVISIONS)


def push(
    there: Spool, key: str, tensors: tuple[bytes, ...], wanted: set[str], stop: int = 99
) -> Incoming:
    """Push, or send `stop` tensors and half of the next and break off."""
    incoming = Incoming(there, key, revision(tensors), wanted)
    for count, index in enumerate(incoming.missing):
        data = tensors[index]
        half = len(data) // 2
        for at, piece in ((0, data[:half]), (half, data[half:])):
            if piece:
                incoming.write(index, at, piece)
            if count == stop:
                return incoming
    try:
        incoming.commit()
    finally:
        incoming.close()
    return incoming


def read(root: Path, key: str, name: str) -> bytes:
    namespace, adapter = key.split("/")
    source = PushedSource(
        root=root, namespace=namespace, name=adapter, revision=name, on_read=lambda count: None
    )

    async def all_of() -> bytes:
        content = await source.resolve()
        return bytes(await content.read(0, content.data_bytes))

    return asyncio.run(all_of())


class Pushes(RuleBasedStateMachine):
    """Pushes of three adapters into one spool; each adapter names the revision that came last."""

    KEYS = ("t/a", "t/b", "u/a")
    LIMIT, NAMESPACE = 30_000, 20_000

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="spool-"))
        self.spool = spool(self.root, self.LIMIT, self.NAMESPACE)
        self.named: dict[str, tuple[str, bytes]] = {}
        self.going: dict[str, Incoming] = {}

    def teardown(self) -> None:
        for each in self.going.values():
            each.close()
        shutil.rmtree(self.root)

    @property
    def wanted(self) -> set[str]:
        return {f"{key}/{hex_of(name)}" for key, (name, _) in self.named.items()}

    @rule(
        key=st.sampled_from(KEYS),
        tensors=st.lists(st.sampled_from(TENSORS), max_size=9).map(tuple),
        stop=st.sampled_from([99, 99, 0, 1, 3]),
    )
    def a_trainer_pushes(self, key: str, tensors: tuple[bytes, ...], stop: int) -> None:
        if (before := self.going.pop(key, None)) is not None:
            before.close()
        made = revision(tensors)
        if self.spool.use_again(key, made.revision):
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
        for each in self.going.values():
            each.close()
        self.going = {}
        self.spool = spool(self.root, self.LIMIT, self.NAMESPACE)

    @rule(key=st.sampled_from(KEYS))
    def an_adapter_is_deleted(self, key: str) -> None:
        self.named.pop(key, None)
        self.spool.forget_others(set(self.named))

    @invariant()
    def what_is_named_reads_as_it_was_pushed(self) -> None:
        for key, (name, data) in self.named.items():
            assert read(self.root, key, name) == data

    @invariant()
    def the_disk_holds_no_more_than_it_may(self) -> None:
        held = sum(f.stat().st_size for f in self.root.glob("*/*/data/*") if "index" not in f.name)
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


def test_disk_is_bounded_however_long_little_changes(tmp_path: Path) -> None:
    there, chance = spool(tmp_path), random.Random(1)
    tensors = [bytes([n]) * 1000 for n in range(20)]
    for step in range(300):
        tensors[chance.randrange(20)] = step.to_bytes(4, "big") * 250
        push(there, "t/a", tuple(tensors), set())
        assert there.used_bytes() <= 2 * REVISIONS * 20_000
    assert read(tmp_path, "t/a", revision(tuple(tensors)).revision) == b"".join(tensors)


def test_a_damaged_copy_is_asked_for_again_when_it_would_be_moved(tmp_path: Path) -> None:
    there = spool(tmp_path)
    old = tuple(bytes([n]) * 1000 for n in range(10))
    push(there, "t/a", old, set())
    (file,) = (tmp_path / "t/a/data").iterdir()
    with file.open("r+b") as damaged:
        damaged.seek(500)
        damaged.write(b"?")
    new = (old[0], *(bytes([n]) * 1000 for n in range(20, 29)))
    with pytest.raises(TransferInterrupted, match="damaged on disk"):
        push(there, "t/a", new, set())
    push(there, "t/a", new, set())
    assert read(tmp_path, "t/a", revision(new).revision) == b"".join(new)


def test_what_is_not_the_next_piece_and_what_is_another_content_is_refused(tmp_path: Path) -> None:
    there = spool(tmp_path)
    tensors = (b"a" * 100, b"b" * 100)
    for pieces, problem in (
        ([(1, 0, b"b")], "got tensor 1 at 0, expected tensor 0 at 0"),
        ([(0, 0, b"a" * 60), (0, 0, b"a")], "got tensor 0 at 0, expected tensor 0 at 60"),
        ([(0, 0, b"a" * 101)], "tensor 0 has 100 bytes, got 101"),
        ([(0, 0, b"")], "tensor 0 has 100 bytes, got 0"),
        ([(7, 0, b"a")], "got tensor 7 at 0"),
        ([(0, 0, b"a" * 100), (1, 0, b"b" * 100), (2, 0, b"c")], "expected the end"),
    ):
        incoming = Incoming(there, "t/a", revision(tensors), set())
        *right, wrong = pieces
        for piece in right:
            incoming.write(*piece)
        with pytest.raises(TransferInterrupted, match=problem):
            incoming.write(*wrong)
        incoming.close()
        shutil.rmtree(tmp_path / "t")
    incoming = Incoming(there, "t/a", revision(tensors), set())
    with pytest.raises(DigestMismatch, match="t0 has digest"):
        incoming.write(0, 0, b"x" * 100)
    with pytest.raises(TransferInterrupted, match="2 of 2 tensors are missing"):
        incoming.commit()
    incoming.close()
    with pytest.raises(SourceNotFound, match="push it again"):
        read(tmp_path, "t/a", revision(tensors).revision)


def test_a_push_without_room_is_refused_before_a_byte_of_it(tmp_path: Path) -> None:
    there = spool(tmp_path, 1000, 600)
    push(there, "t/a", (b"a" * 500,), set())
    kept = {f"t/a/{hex_of(revision((b'a' * 500,)).revision)}"}
    with pytest.raises(StagingFull, match=r"namespace t has 0\.0 of 0\.0 MiB"):
        push(there, "t/b", (b"b" * 200,), kept)
    push(there, "u/b", (b"c" * 400,), kept)
    with pytest.raises(StagingFull, match="the operator has"):
        push(
            there, "v/b", (b"d" * 200,), kept | {f"u/b/{hex_of(revision((b'c' * 400,)).revision)}"}
        )
    push(there, "t/b", (b"b" * 200,), set())
    with pytest.raises(SourceNotFound):
        read(tmp_path, "t/a", revision((b"a" * 500,)).revision)
