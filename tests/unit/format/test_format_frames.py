"""frames and the generated classes write and read the same bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lorafleet.errors import TransferInterrupted
from lorafleet.frames import (
    SEND_CHUNK_FIELD,
    STAGE_CHUNK_FIELD,
    ChunkFrame,
    CommitFrame,
    ManifestFrame,
    StagingIdFrame,
    decode_send_request,
    decode_stage_request,
    encode_chunk,
    encode_commit,
    encode_manifest,
    encode_staging_id,
)
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from lorafleet.wire import BYTES, Fields, field_key, varint

if TYPE_CHECKING:
    from collections.abc import Callable

UINT64, UINT32 = st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)


@settings(deadline=None)
@given(UINT64, UINT32, st.binary(max_size=300))
def test_a_chunk_is_what_protobuf_writes(offset: int, crc: int, data: bytes) -> None:
    chunk = pb.AdapterChunk(offset=offset, crc32c=crc, data=data)
    for raw, wanted, decode in (
        (
            encode_chunk(offset, crc, data),
            pb.StageAdapterRequest(chunk=chunk),
            decode_stage_request,
        ),
        (
            encode_chunk(offset, crc, memoryview(data), SEND_CHUNK_FIELD),
            pb.SendChunksRequest(chunk=chunk),
            decode_send_request,
        ),
    ):
        assert raw == wanted.SerializeToString()
        assert decode(raw) == ChunkFrame(offset, crc, memoryview(data))


def test_a_received_chunk_is_a_view() -> None:
    raw = encode_chunk(5, 6, b"payload")
    frame = decode_stage_request(raw)
    assert isinstance(frame, ChunkFrame)
    assert frame.data.obj is raw


@settings(deadline=None)
@given(st.text(st.characters(codec="utf-8"), max_size=40), st.binary(max_size=50), UINT64, UINT32)
def test_a_manifest_is_what_protobuf_writes(
    adapter: str, header: bytes, data_bytes: int, chunk_bytes: int
) -> None:
    manifest = pb.AdapterManifest(
        adapter=adapter,
        safetensors_header=header,
        data_bytes=data_bytes,
        chunk_bytes=chunk_bytes,
        allow_base_mismatch=True,
    )
    raw = encode_manifest(manifest.SerializeToString())
    assert pb.StageAdapterRequest.FromString(raw) == pb.StageAdapterRequest(manifest=manifest)
    frame = decode_stage_request(pb.StageAdapterRequest(manifest=manifest).SerializeToString())
    assert isinstance(frame, ManifestFrame)
    assert pb.AdapterManifest.FromString(frame.raw) == manifest


def test_commit_and_staging_id_are_what_protobuf_writes() -> None:
    commit = pb.StageAdapterRequest(commit=pb.CommitStaging()).SerializeToString()
    assert encode_commit() == commit
    assert decode_stage_request(commit) == CommitFrame()
    opened = pb.SendChunksRequest(staging_id="a\u00e4").SerializeToString()
    assert encode_staging_id("a\u00e4") == opened
    assert decode_send_request(opened) == StagingIdFrame("a\u00e4")


def test_unknown_fields_are_skipped() -> None:
    inner = b"\x38\x01" + b"\x3d1234" + b"\x39" + b"12345678" + b"\x42\x02ab"
    chunk = inner + pb.AdapterChunk(offset=3, data=b"xy").SerializeToString() + inner
    raw = inner + b"\x12" + bytes([len(chunk)]) + chunk + inner
    assert decode_stage_request(raw) == ChunkFrame(3, 0, memoryview(b"xy"))


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "neither manifest nor chunk nor commit"),
        (b"\x12", "promises 1 bytes, 0 are left"),
        (b"\x12\x05ab", "promises 5 bytes, 2 are left"),
        (b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "promises 18446744073709551615 bytes"),
        (b"\x12" + b"\x80" * 12, "varint of more than ten bytes"),
        (b"\x10\x05", "field 2 of the message has wire type 0"),
        (b"\x12\x02\x12\x00", "field 2 of the chunk has wire type 2"),
        (b"\x12\x02\x18\x00", "field 3 of the chunk has wire type 0"),
        (b"\x12\x00\x12\x00", "more than one member"),
        (b"\x1a\x00\x12\x00", "more than one member"),
        (b"\x13", "field of wire type 3"),
        (b"\x07", "field number 0"),
        (b"\x02\x00", "field number 0"),
    ],
)
def test_a_malformed_message_is_refused(raw: bytes, message: str) -> None:
    with pytest.raises(TransferInterrupted) as refused:
        decode_stage_request(raw)
    assert message in str(refused.value)


@pytest.mark.parametrize("raw", [b"\x0a\x01\xff", b"\x0a\x81\x02" + b"a" * 257, b"\x0a\x02a"])
def test_a_bad_staging_id_is_refused(raw: bytes) -> None:
    with pytest.raises(TransferInterrupted):
        decode_send_request(raw)


@settings(deadline=None, max_examples=500)
@given(st.binary(max_size=40), st.integers(0, 40), st.integers(0, 255))
def test_any_bytes_give_a_frame_or_our_error(raw: bytes, cut: int, byte: int) -> None:
    good = encode_chunk(1 << 40, 7, raw)
    mutated = good[:cut] + bytes([byte]) + good[cut + 1 :]
    for decode in (decode_stage_request, decode_send_request):
        for text in (raw, mutated, good[:cut]):
            assert outcome(decode, text)


def outcome(decode: object, raw: bytes) -> object:
    assert callable(decode)
    try:
        return decode(raw)
    except TransferInterrupted as refused:
        return str(refused)


@pytest.mark.parametrize("offset", [-1, 2**64])
def test_an_offset_outside_uint64_is_a_programming_error(offset: int) -> None:
    with pytest.raises(ValueError, match="is no uint64"):
        encode_chunk(offset, 0, b"")


@pytest.mark.parametrize("field", [b"\x08\x01", b"\xa0\x06\x01"])
@pytest.mark.parametrize("decode", [decode_stage_request, decode_send_request])
def test_a_million_fields_are_not_read(
    decode: Callable[[bytes], object], field: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []
    whole = Fields._varint
    monkeypatch.setattr(Fields, "_varint", lambda self: read.append(1) or whole(self))
    many = field * 1_000_000
    inside = field_key(STAGE_CHUNK_FIELD, BYTES) + varint(len(many)) + many
    for raw in (many, inside):
        with pytest.raises(TransferInterrupted):
            decode(raw)
    assert len(read) < 500
