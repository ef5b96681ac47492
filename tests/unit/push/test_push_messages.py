"""How many messages bring a revision's tensors, and what the operator makes of any cut of them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from late_buffers import BOUNCE
from lorafleet.errors import DigestMismatch, TransferInterrupted
from lorafleet.push.content import Content
from lorafleet.push.frames import stub_of
from lorafleet.push.sending import Sending
from lorafleet.push.tensors import PIECE_BYTES, FileTensor
from lorafleet.v1alpha1 import push_pb2 as pb
from lorafleet.v1alpha1 import push_pb2_grpc as pb_grpc
from lorafleet_operator.push.incoming import Incoming
from lorafleet_operator.push.message import Message
from push_replica import answering
from spool_builders import end, push, read, revision, spool

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

MANY = [bytes([number % 251]) * 1024 for number in range(2000)]
MIXED = [bytes([n]) * size for n, size in enumerate((1, 5, 3, PIECE_BYTES - 1, 1, 1, 9 << 20, 7))]


class Replica(pb_grpc.PushServiceServicer):
    """Lacks `missing`; keeps the messages that bring it. Earlier operators do not say `runs_on`."""

    def __init__(self, accepted: pb.PushAccepted) -> None:
        self.accepted = accepted
        self.messages: list[pb.PushedBytes] = []

    def Push(self, requests: Any, context: Any) -> Iterator[pb.PushResponse]:  # noqa: N802
        next(requests)
        yield pb.PushResponse(accepted=self.accepted)
        for request in requests:
            if request.HasField("commit"):
                yield pb.PushResponse(committed=pb.PushCommitted())
                return
            self.messages.append(request.bytes)


def sent(
    tensors: Sequence[bytes], missing: Sequence[int], *, runs_on: bool
) -> list[pb.PushedBytes]:
    """Return the messages that a trainer sends; as if they were on a device."""
    replica = Replica(pb.PushAccepted(missing=missing, runs_on=runs_on))
    content = Content(b"", b"", [Reused(data) for data in tensors])
    told: list[tuple[int, int]] = []
    with answering(replica) as address, grpc.insecure_channel(address) as channel:
        Sending(pb.PushManifest(), content, lambda *given: told.append(given))(stub_of(channel), ())
    size = sum(len(tensors[index]) for index in missing)
    assert (told[0], told[-1]) == ((0, size), (size, size))
    return replica.messages


class Reused(FileTensor):
    """As one on a device: every piece lies in a buffer that is filled again."""

    bounce = BOUNCE

    def __init__(self, data: bytes) -> None:
        super().__init__("U8", (len(data),), memoryview(data))


def test_two_thousand_small_tensors_go_in_one_message() -> None:
    messages = sent(MANY, range(2000), runs_on=True)
    assert [len(each.data) for each in messages] == [2000 * 1024]
    assert messages[0].data == b"".join(MANY)


def test_to_an_earlier_operator_each_tensor_goes_by_itself() -> None:
    messages = sent(MANY, range(2000), runs_on=False)
    assert [(each.tensor, each.offset, each.data) for each in messages] == [
        (number, 0, data) for number, data in enumerate(MANY)
    ]


@pytest.mark.parametrize("missing", [range(8), (1, 3, 4, 7), (6,), ()])
def test_a_message_holds_what_follows_up_to_its_bound(missing: Sequence[int]) -> None:
    messages = sent(MIXED, missing, runs_on=True)
    at = {}
    place = 0
    for index in missing:
        for offset in range(len(MIXED[index])) if len(MIXED[index]) < 10 else (0, 4 << 20, 8 << 20):
            at[place + offset] = (index, offset)
        place += len(MIXED[index])
    place = 0
    for message in messages:
        assert (message.tensor, message.offset) == at[place]
        assert 0 < len(message.data) <= PIECE_BYTES
        place += len(message.data)
    assert b"".join(each.data for each in messages) == b"".join(MIXED[each] for each in missing)
    for one, two in pairwise(messages):
        following = min(len(MIXED[two.tensor]) - two.offset, PIECE_BYTES)
        assert len(one.data) + following > PIECE_BYTES, "else it had gone in the first"


TENSORS = tuple(bytes([number]) * size for number, size in enumerate((7, 0, 1, 30, 2, 100, 5)))
THERE = (TENSORS[2], TENSORS[4])
MISSING = b"".join(each for each in TENSORS if each not in THERE)


def begun(root: Path) -> Incoming:
    there = spool(root)
    push(there, "t/a", THERE, set())
    incoming = Incoming(there, "t/a", revision(TENSORS))
    incoming.open(set())
    assert incoming.missing == [0, 3, 5, 6]
    return incoming


def starts(cuts: Sequence[int]) -> Iterator[tuple[int, int, bytes]]:
    """Yield (tensor, offset, bytes) of what is missing, cut there."""
    places = [(index, at) for index in (0, 3, 5, 6) for at in range(len(TENSORS[index]))]
    edges = sorted({0, len(MISSING), *cuts})
    for begin, stop in pairwise(edges):
        yield (*places[begin], MISSING[begin:stop])


@given(cuts=st.lists(st.integers(0, len(MISSING)), max_size=8))
def test_any_cut_of_the_bytes_is_the_same_revision(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int]
) -> None:
    root = tmp_path_factory.mktemp("spool")
    incoming = begun(root)
    for tensor, offset, data in starts(cuts):
        incoming.write(tensor, offset, data)
    incoming.commit()
    incoming.close()
    assert incoming.received_bytes == len(MISSING)
    assert read(root, "t/a", revision(TENSORS).revision) == b"".join(TENSORS)


def test_bytes_beyond_the_last_missing_tensor_are_refused_before_any_is_written(
    tmp_path: Path,
) -> None:
    incoming = begun(tmp_path)
    incoming.write(0, 0, MISSING[:10])
    size = incoming._part.stat().st_size
    line = rf"^got {len(MISSING) - 9} bytes at tensor 3, expected 1 to {len(MISSING) - 10}$"
    with pytest.raises(TransferInterrupted, match=line):
        incoming.write(3, 3, MISSING[10:] + b"x")
    assert incoming._part.stat().st_size == size
    incoming.write(3, 3, MISSING[10:])
    with pytest.raises(TransferInterrupted, match=r"^got tensor 3 at 3, expected the end$"):
        incoming.write(3, 3, MISSING[10:])
    incoming.commit()
    incoming.close()


def test_what_was_whole_before_a_wrong_tensor_of_the_same_message_is_not_asked_for_again(
    tmp_path: Path,
) -> None:
    incoming = begun(tmp_path)
    wrong = bytearray(MISSING)
    wrong[-6] ^= 1  # the last byte of tensor 5
    incoming.write(0, 0, bytes(wrong))
    with pytest.raises(DigestMismatch, match=r"^t5 has digest"):
        incoming.settle()
    end(incoming._spool, "t/a", incoming)
    again = Incoming(spool(tmp_path), "t/a", revision(TENSORS))
    again.open(set())
    assert again.missing == [5, 6]
    again.write(5, 0, TENSORS[5] + TENSORS[6])
    again.commit()
    again.close()
    assert read(tmp_path, "t/a", revision(TENSORS).revision) == b"".join(TENSORS)


def send_wrong(incoming: Incoming, cuts: Sequence[int], at: int) -> None:
    """Send all that is missing, cut there, with another byte at `at`."""
    place = 0
    for tensor, offset, data in starts(cuts):
        wrong = bytearray(data)
        if place <= at < place + len(data):
            wrong[at - place] ^= 1
        place += len(data)
        incoming.write(tensor, offset, bytes(wrong))
    incoming.settle()


@given(cuts=st.lists(st.integers(0, len(MISSING)), max_size=8), at=st.integers(0, len(MISSING) - 1))
def test_nothing_counts_from_a_wrong_byte_on(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], at: int
) -> None:
    """However the bytes are cut, and though messages behind the wrong one are right and written."""
    root = tmp_path_factory.mktemp("spool")
    incoming = begun(root)
    stops = accumulate(len(TENSORS[index]) for index in incoming.missing)
    left = [index for index, stop in zip(incoming.missing, stops, strict=True) if stop > at]
    with pytest.raises(DigestMismatch, match=f"^t{left[0]} has digest"):
        send_wrong(incoming, cuts, at)
    with pytest.raises(TransferInterrupted, match=f"^{len(left)} of 7 tensors are missing"):
        incoming.commit()
    end(incoming._spool, "t/a", incoming)
    again = Incoming(spool(root), "t/a", revision(TENSORS))
    again.open(set())
    assert again.missing == left
    end(again._spool, "t/a", again)


MESSAGES = tuple(bytes([number]) * 100 for number in range(12))


def test_a_few_messages_are_taken_while_the_first_is_written_and_none_counts_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, some = threading.Event(), threading.Event()
    store, log = Message.store, list[str]()

    def late(message: Message, descriptor: int) -> list[bytes]:
        if message.offset == 0:
            opened.wait(60)
        return store(message, descriptor)

    def send() -> None:
        for number, data in enumerate(MESSAGES):
            incoming.write(number, 0, data)
            log.append(f"{number} taken")
            if number == 3:
                some.set()

    monkeypatch.setattr(Message, "store", late)
    incoming = Incoming(spool(tmp_path), "t/a", revision(MESSAGES))
    incoming.open(set())
    with ThreadPoolExecutor(1) as trainer:
        sent = trainer.submit(send)
        assert some.wait(60)
        assert incoming._index.stat().st_size == 0
        log.append("written")
        opened.set()
        sent.result(60)
    assert log.index("written") < log.index("4 taken"), "memory is bounded"
    incoming.commit()
    incoming.close()
    assert read(tmp_path, "t/a", revision(MESSAGES).revision) == b"".join(MESSAGES)


def test_more_in_a_message_than_the_protocol_has_is_refused(tmp_path: Path) -> None:
    large = bytes(PIECE_BYTES + 1)
    incoming = Incoming(spool(tmp_path, 9 << 20, 9 << 20), "t/a", revision((large,)))
    incoming.open(set())
    with pytest.raises(
        TransferInterrupted, match=r"^got 4194305 bytes at tensor 0, expected 1 to 4194304$"
    ):
        incoming.write(0, 0, large)
    incoming.close()
