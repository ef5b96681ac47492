"""The two stream messages of v1alpha1 without copies of the payload.

Wire-compatible with the generated classes of `sidecar.proto` (a test proves it). Sending
joins the payload once into the outgoing message; receiving gives a view of the buffer that
gRPC delivered. Input is hostile: whatever is wrong raises TransferInterrupted.
"""

from __future__ import annotations

from dataclasses import dataclass

STAGE_CHUNK_FIELD = 2  # StageAdapterRequest.chunk
SEND_CHUNK_FIELD = 2  # SendChunksRequest.chunk


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
    raise NotImplementedError


def encode_commit() -> bytes:
    """Return a StageAdapterRequest that holds CommitStaging."""
    raise NotImplementedError


def encode_staging_id(staging_id: str) -> bytes:
    """Return the SendChunksRequest that opens a stripe."""
    raise NotImplementedError


def encode_chunk(
    offset: int, crc32c: int, data: bytes | memoryview, field: int = STAGE_CHUNK_FIELD
) -> bytes:
    """Return the request that carries one chunk in `field`; the payload is copied once."""
    raise NotImplementedError


def decode_stage_request(raw: bytes) -> ManifestFrame | ChunkFrame | CommitFrame:
    """Return the frame in a serialised StageAdapterRequest, or raise TransferInterrupted."""
    raise NotImplementedError


def decode_send_request(raw: bytes) -> StagingIdFrame | ChunkFrame:
    """Return the frame in a serialised SendChunksRequest, or raise TransferInterrupted."""
    raise NotImplementedError
