"""The two stream messages of v1alpha1 without copies of the payload.

Wire-compatible with the generated classes of `sidecar.proto` (a test proves it). Sending
joins the payload once into the outgoing message; receiving gives a view of the buffer that
gRPC delivered. Input is hostile: whatever is wrong raises TransferInterrupted.
"""

from __future__ import annotations

from dataclasses import dataclass

from lorafleet.errors import TransferInterrupted
from lorafleet.wire import BYTES, FIXED32, VARINT, Fields, field_key, varint

STAGE_CHUNK_FIELD = 2
"""StageAdapterRequest.chunk"""
SEND_CHUNK_FIELD = 2
"""SendChunksRequest.chunk"""
_MANIFEST_FIELD = 1
_COMMIT_FIELD = 3
_STAGING_ID_FIELD = 1
_OFFSET, _CRC32C, _DATA = 1, 2, 3  # AdapterChunk
_MAX_STAGING_ID = 256


@dataclass(frozen=True)
class ManifestFrame:
    """StageAdapterRequest.manifest: the bytes of an AdapterManifest, for the generated class."""

    raw: bytes


@dataclass(frozen=True)
class StagingIdFrame:
    """SendChunksRequest.staging_id."""

    staging_id: str


@dataclass(frozen=True)
class ChunkFrame:
    """A chunk; `data` is a view into the received message."""

    offset: int
    crc32c: int
    data: memoryview


@dataclass(frozen=True)
class CommitFrame:
    """StageAdapterRequest.commit."""


def encode_manifest(manifest: bytes) -> bytes:
    """Return a StageAdapterRequest around a serialised AdapterManifest."""
    return field_key(_MANIFEST_FIELD, BYTES) + varint(len(manifest)) + manifest


def encode_commit() -> bytes:
    """Return a StageAdapterRequest that holds CommitStaging."""
    return field_key(_COMMIT_FIELD, BYTES) + varint(0)


def encode_staging_id(staging_id: str) -> bytes:
    """Return the SendChunksRequest that opens a stripe."""
    raw = staging_id.encode()
    return field_key(_STAGING_ID_FIELD, BYTES) + varint(len(raw)) + raw


def encode_chunk(
    offset: int, crc32c: int, data: bytes | memoryview, field: int = STAGE_CHUNK_FIELD
) -> bytes:
    """Return the request that carries one chunk in `field`; the payload is copied once."""
    size = data.nbytes if isinstance(data, memoryview) else len(data)
    head = b""
    # proto3 leaves out fields that hold their default.
    if offset:
        head += field_key(_OFFSET, VARINT) + varint(offset)
    if crc32c:
        head += field_key(_CRC32C, FIXED32) + crc32c.to_bytes(4, "little")
    if size:
        head += field_key(_DATA, BYTES) + varint(size)
    length = varint(len(head) + size)
    return b"".join((field_key(field, BYTES), length, head, data))


def decode_stage_request(raw: bytes) -> ManifestFrame | ChunkFrame | CommitFrame:
    """Return the frame in a serialised StageAdapterRequest, or raise TransferInterrupted."""
    field, body = _only_member(raw, (_MANIFEST_FIELD, STAGE_CHUNK_FIELD, _COMMIT_FIELD))
    if field == _MANIFEST_FIELD:
        return ManifestFrame(bytes(body))
    if field == _COMMIT_FIELD:
        return CommitFrame()
    return _chunk(body)


def decode_send_request(raw: bytes) -> StagingIdFrame | ChunkFrame:
    """Return the frame in a serialised SendChunksRequest, or raise TransferInterrupted."""
    field, body = _only_member(raw, (_STAGING_ID_FIELD, SEND_CHUNK_FIELD))
    if field == SEND_CHUNK_FIELD:
        return _chunk(body)
    if len(body) > _MAX_STAGING_ID:
        raise TransferInterrupted(f"staging_id of {len(body)} bytes, at most {_MAX_STAGING_ID}")
    try:
        return StagingIdFrame(str(body, "utf-8"))
    except UnicodeDecodeError:
        raise TransferInterrupted("staging_id is not UTF-8") from None


def _only_member(raw: bytes, members: tuple[int, ...]) -> tuple[int, memoryview]:
    """Return the one member of the message's oneof; unknown fields are skipped."""
    found: tuple[int, memoryview] | None = None
    for field, kind, value in Fields(memoryview(raw)):
        if field not in members:
            continue
        if kind != BYTES or not isinstance(value, memoryview):
            raise TransferInterrupted(f"field {field} of the message has wire type {kind}")
        # protobuf would merge or take the last: no sender of ours does either.
        if found is not None:
            raise TransferInterrupted("message holds more than one member")
        found = field, value
    if found is None:
        raise TransferInterrupted("message holds neither manifest nor chunk nor commit")
    return found


def _chunk(body: memoryview) -> ChunkFrame:
    offset, crc32c, data = 0, 0, body[:0]
    for field, kind, value in Fields(body):
        if field == _OFFSET and kind == VARINT and isinstance(value, int):
            offset = value
        elif field == _CRC32C and kind == FIXED32 and isinstance(value, int):
            crc32c = value
        elif field == _DATA and kind == BYTES and isinstance(value, memoryview):
            data = value
        elif field in (_OFFSET, _CRC32C, _DATA):
            raise TransferInterrupted(f"field {field} of the chunk has wire type {kind}")
    return ChunkFrame(offset, crc32c, data)
