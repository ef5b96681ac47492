"""What a transfer's manifest says of its tensors, and to whom."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import pytest
from lorafleet.header import parse_header
from lorafleet.layout import chunk_plan
from lorafleet_operator.payload import payload_of
from lorafleet_operator.sources.base import ResolvedAdapter
from operator_builders import facts
from staging_builders import digests, source_adapter

if TYPE_CHECKING:
    from lorafleet_operator.transfer.streaming import Payload

ADAPTER = source_adapter()
CHUNK = 64 << 10


def content(**changes: Any) -> ResolvedAdapter:
    known = {"tensor_digests": tuple(digests(ADAPTER)), "cut_before": (3, 4)}
    return ResolvedAdapter(
        "f", ADAPTER.header, ADAPTER.config, len(ADAPTER.data), "r", "u", **{**known, **changes}
    )


def says(payload: Payload) -> tuple[tuple[bytes, ...], tuple[int, ...]]:
    manifest = payload.manifest
    header = parse_header(manifest.safetensors_header, manifest.data_bytes)
    assert payload.plan == chunk_plan(header, CHUNK, manifest.cut_before), "both sides cut alike"
    return tuple(manifest.tensor_digests), tuple(manifest.cut_before)


def test_the_cuts_that_are_told_are_those_of_the_plan() -> None:
    made = payload_of(facts(), content(), CHUNK, reuse=True)
    assert says(made) == (tuple(digests(ADAPTER)), (3, 4))


def test_who_would_not_understand_it_is_told_nothing() -> None:
    """Its plan would be another."""
    assert says(payload_of(facts(), content(), CHUNK, reuse=False)) == ((), ())


def test_a_manifest_stays_within_what_a_sidecar_takes() -> None:
    many = (hashlib.sha256(b"x").digest(),) * 450_000
    made = payload_of(facts(), content(tensor_digests=many), CHUNK, reuse=True)
    assert says(made) == ((), ())
    assert made.manifest.ByteSize() < 17 << 20


@pytest.mark.parametrize("reuse", [True, False])
def test_a_source_that_does_not_know_its_tensors_names_none(reuse: bool) -> None:
    made = payload_of(facts(), content(tensor_digests=(), cut_before=()), CHUNK, reuse=reuse)
    assert says(made) == ((), ())
