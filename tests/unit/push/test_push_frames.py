"""push.frames and the generated classes write and read the same bytes; a received message is not copied."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lorafleet.errors import TransferInterrupted
from lorafleet.push.frames import Pushed, decode, encode
from lorafleet.v1alpha1 import push_pb2 as pb
from lorafleet.wire import BYTES, Fields, field_key, varint

UINT64, UINT32 = st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)
PIECE = pb.PushRequest(bytes=pb.PushedBytes(tensor=3, offset=4, data=b"payload"))
OTHERS = [
    pb.PushRequest(manifest=pb.PushManifest(name="policy", step=7)),
    pb.PushRequest(commit=pb.CommitPush()),
    pb.PushRequest(),
]


@settings(deadline=None)
@given(UINT32, UINT64, st.lists(st.binary(max_size=300), max_size=4))
def test_bytes_are_what_protobuf_writes(tensor: int, offset: int, parts: list[bytes]) -> None:
    data = b"".join(parts)
    raw = encode(tensor, offset, [memoryview(each) for each in parts])
    wanted = pb.PushRequest(bytes=pb.PushedBytes(tensor=tensor, offset=offset, data=data))
    assert raw == wanted.SerializeToString()
    assert decode(raw) == Pushed(tensor, offset, memoryview(data))


def read(request: pb.PushRequest) -> Pushed | pb.PushRequest:
    """Return the same as `decode` has it."""
    found = request.bytes
    is_bytes = request.WhichOneof("message") == "bytes"
    return Pushed(found.tensor, found.offset, memoryview(found.data)) if is_bytes else request


def test_received_bytes_are_a_view() -> None:
    raw = PIECE.SerializeToString()
    found = decode(raw)
    assert isinstance(found, Pushed)
    assert found.data.obj is raw


@pytest.mark.parametrize("request_", OTHERS)
def test_what_else_is_sent_is_read_by_protobuf(request_: pb.PushRequest) -> None:
    assert decode(request_.SerializeToString()) == request_


@pytest.mark.parametrize("other", [*OTHERS, PIECE])
@pytest.mark.parametrize("first", [True, False])
def test_two_members_are_what_protobuf_makes_of_them(other: pb.PushRequest, *, first: bool) -> None:
    both = [PIECE.SerializeToString(), other.SerializeToString()]
    raw = b"".join(both if first else reversed(both))
    assert decode(raw) == read(pb.PushRequest.FromString(raw))


def test_what_a_later_version_adds_is_skipped() -> None:
    later = b"\xa2\x06\x03new"  # field 100, three bytes
    assert decode(later + PIECE.SerializeToString() + later) == read(PIECE)


@pytest.mark.parametrize("field", [b"\x08\x01", b"\xa0\x06\x01", b"\x12\x00"])
@pytest.mark.parametrize("inside", [True, False])
def test_of_many_fields_a_few_are_read_here(
    field: bytes, *, inside: bool, monkeypatch: Any
) -> None:
    asked = []
    whole = Fields._varint
    monkeypatch.setattr(Fields, "_varint", lambda self: asked.append(1) or whole(self))
    many = field * 100_000
    raw = field_key(2, BYTES) + varint(len(many)) + many if inside else many
    with suppress(TransferInterrupted):
        decode(raw)
    assert len(asked) < 20


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=40) | st.binary(max_size=40).map(lambda tail: b"\x12\x0b\x08\x03" + tail))
def test_what_protobuf_does_not_read_is_refused(raw: bytes) -> None:
    with suppress(TransferInterrupted):
        found = decode(raw)
        assert pb.PushRequest.FromString(raw) is not None, found
