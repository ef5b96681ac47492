"""What a manifest promises, checked against the engine before a byte is reserved."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from google.protobuf.message import DecodeError
from lorafleet.errors import InvalidAdapter, TooLarge, TransferInterrupted
from lorafleet.header import SafetensorsHeader, parse_header
from lorafleet.layout import CanonicalLayout, chunk_plan, plan_layout
from lorafleet.peft_config import AdapterConfig
from lorafleet.v1alpha1 import sidecar_pb2 as pb

if TYPE_CHECKING:
    from lorafleet.profile import EngineProfile

MIN_CHUNK_BYTES = 64 << 10
MAX_CHUNK_BYTES = 16 << 20
MAX_HEADER_BYTES = 16 << 20  # 100,000 tensors; one gRPC message must carry it
MAX_NAME_CHARS = 1024
DIGEST_BYTES = 32  # SHA-256


@dataclass(frozen=True)
class StagingPlan:
    """One transfer: the source's header, the image's layout and the cuts between them."""

    manifest: pb.AdapterManifest
    header: SafetensorsHeader
    layout: CanonicalLayout
    chunks: list[tuple[int, int]]  # (offset, length) in the source's data section
    layout_key: str  # equal for equal images: same tensors, dtype, scaling and choice

    @property
    def image_bytes(self) -> int:
        """Return the size of the canonical safetensors file."""
        return len(self.layout.image_header) + self.layout.data_bytes

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what is worth telling of the source: of an image its first reader told."""
        if self.manifest.canonical:
            return tuple(self.manifest.notes)
        return (*self.layout.normalized, *self.layout.notes)

    @classmethod
    def make(cls, raw: bytes, profile: EngineProfile, limit_bytes: int) -> Self:
        """Return the plan of a serialised AdapterManifest.

        Raises AdapterRejected (terminal) for what is wrong with the adapter, and
        TransferInterrupted for a manifest that no client of ours sends.
        """
        manifest = _decode(raw)
        adapter = manifest.adapter
        if manifest.data_bytes > limit_bytes * 4:  # the strongest cast is float64 to 2 bytes
            raise TooLarge(
                f"adapter {adapter}: {manifest.data_bytes} bytes are promised, "
                f"the arena holds {limit_bytes}"
            )
        header = parse_header(manifest.safetensors_header, manifest.data_bytes)
        _check_digests(manifest, len(header.tensors))
        config = AdapterConfig.parse(manifest.adapter_config, adapter=adapter)
        layout = plan_layout(
            header,
            config,
            profile,
            adapter=adapter,
            allow_base_mismatch=manifest.allow_base_mismatch,
            adapter_name="" if manifest.canonical else manifest.adapter_name,
            drop_unmatched="" if manifest.canonical else manifest.drop_unmatched,
        )
        needed = len(layout.image_header) + layout.data_bytes
        if needed > limit_bytes:
            raise TooLarge(
                f"adapter {adapter}: needs {needed} bytes, the arena holds {limit_bytes}"
            )
        # Two adapters of one file have equal images but for the tensors' bytes.
        taken = json.dumps([manifest.adapter_name, manifest.drop_unmatched]).encode()
        key = hashlib.sha256(layout.image_header + layout.config_json + taken).hexdigest()
        chunks = chunk_plan(header, manifest.chunk_bytes, manifest.cut_before)
        return cls(manifest, header, layout, chunks, key)

    def continues(self, other: pb.AdapterManifest) -> bool:
        """Whether chunks that `other` announced are the chunks of this plan."""
        mine = self.manifest
        return (
            other.safetensors_header == mine.safetensors_header
            and other.adapter_config == mine.adapter_config
            and other.data_bytes == mine.data_bytes
            and other.chunk_bytes == mine.chunk_bytes
            and other.cut_before == mine.cut_before
            and other.adapter_name == mine.adapter_name
            and other.drop_unmatched == mine.drop_unmatched
            and other.canonical == mine.canonical
        )


def _check_digests(manifest: pb.AdapterManifest, tensors: int) -> None:
    sizes = {len(each) for each in manifest.tensor_digests}
    if sizes and (sizes != {DIGEST_BYTES} or len(manifest.tensor_digests) != tensors):
        raise TransferInterrupted(
            f"the manifest has {len(manifest.tensor_digests)} digests of {max(sizes)} bytes at most, "
            f"expected {tensors} of {DIGEST_BYTES}"
        )


def _decode(raw: bytes) -> pb.AdapterManifest:
    try:
        manifest = pb.AdapterManifest.FromString(raw)
    except DecodeError as error:
        raise TransferInterrupted("the manifest is not a readable message") from error
    if not 0 < len(manifest.fingerprint) <= MAX_NAME_CHARS:
        raise TransferInterrupted(
            f"the manifest's fingerprint has {len(manifest.fingerprint)} characters, "
            f"expected 1 to {MAX_NAME_CHARS}"
        )
    if not 0 < len(manifest.adapter) <= MAX_NAME_CHARS:
        raise TransferInterrupted(
            f"the manifest's adapter name has {len(manifest.adapter)} characters, "
            f"expected 1 to {MAX_NAME_CHARS}"
        )
    if not MIN_CHUNK_BYTES <= manifest.chunk_bytes <= MAX_CHUNK_BYTES:
        raise TransferInterrupted(
            f"chunk_bytes is {manifest.chunk_bytes}, "
            f"expected {MIN_CHUNK_BYTES} to {MAX_CHUNK_BYTES}"
        )
    if len(manifest.safetensors_header) > MAX_HEADER_BYTES:
        raise InvalidAdapter(
            f"adapter {manifest.adapter}: the safetensors header has "
            f"{len(manifest.safetensors_header)} bytes, at most {MAX_HEADER_BYTES} are taken"
        )
    return manifest
