"""What is sent to engines of one content: the manifest and the cuts of its transfer. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lorafleet.header import parse_header
from lorafleet.layout import chunk_plan
from lorafleet.v1alpha1 import sidecar_pb2 as pb

from lorafleet_operator.transfer.streaming import Payload

if TYPE_CHECKING:
    from lorafleet_operator.facts import Facts
    from lorafleet_operator.sources.base import ResolvedAdapter

_DIGEST_BYTES: Final = 36
"""A digest in a manifest, with what is around it."""
_MOST_BYTES: Final = 15 << 20
"""Of header and digests; a sidecar takes 17 MiB in one message."""


def payload_of(facts: Facts, content: ResolvedAdapter, chunk_bytes: int, *, reuse: bool) -> Payload:
    """Return the transfer of the content in chunks of at most `chunk_bytes`.

    reuse: whether all who take it know how to leave out what they have of it.
    """
    spec, digests, cuts = facts.adapter.spec, content.tensor_digests, content.cut_before
    if not reuse or len(content.header_bytes) + _DIGEST_BYTES * len(digests) > _MOST_BYTES:
        digests, cuts = (), ()
    header = parse_header(content.header_bytes, content.data_bytes)
    return Payload(
        manifest=pb.AdapterManifest(
            adapter=facts.key,
            fingerprint=content.fingerprint,
            safetensors_header=content.header_bytes,
            adapter_config=content.config_bytes,
            data_bytes=content.data_bytes,
            chunk_bytes=chunk_bytes,
            allow_base_mismatch=spec.allow_base_mismatch,
            adapter_name=spec.source.adapter_name or "",
            drop_unmatched=spec.drop_unmatched or "",
            whole=content.whole,
            tensor_digests=digests,
            cut_before=cuts,
        ),
        plan=chunk_plan(header, chunk_bytes, cuts),
        read=content.read,
        confirm=content.confirm,
    )
