"""Manifests that promise what they should not: refused before anything is reserved."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import grpc
import pytest
from lorafleet import frames
from lorafleet.errors import EngineUnreachable
from staging_builders import digests, engine_profile, source_adapter
from staging_client import StageCall, reason
from staging_fixtures import EXTENT, failure, refusal, sidecar
from staging_server import LIMIT, Serving, serving

if TYPE_CHECKING:
    from pathlib import Path

    from lorafleet.profile import EngineProfile

__all__ = ["sidecar"]  # a fixture

ADAPTER = source_adapter(1)
CUTS = ADAPTER.cuts()
TENSORS = len(digests(ADAPTER))


CHUNK = frames.encode_chunk(*ADAPTER.chunk(*CUTS[0]))
FIRST_MESSAGES = {
    "nothing": b"",
    "a chunk": CHUNK,
    "a commit": frames.encode_commit(),
    "half a manifest": frames.encode_manifest(ADAPTER.manifest().SerializeToString())[:100],
    "noise": b"\xff" * 40,
}


@pytest.mark.parametrize("message", FIRST_MESSAGES.values(), ids=FIRST_MESSAGES)
async def test_a_stream_that_does_not_begin_with_a_manifest_is_ended(
    sidecar: Serving, message: bytes
) -> None:
    call = StageCall(sidecar.channel)
    await call.raw(message)
    assert reason(await failure(call)) == "TransferInterrupted"
    assert sidecar.store.extents() == []


HUGE = 1 << 60
HUGE_HEADER = json.dumps(
    {
        "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": {
            "dtype": "BF16",
            "shape": [HUGE // 2],
            "data_offsets": [0, HUGE],
        }
    }
).encode()


@pytest.mark.parametrize("header", [ADAPTER.header, HUGE_HEADER], ids=["short header", "in both"])
async def test_a_promise_of_2_to_the_60_bytes_allocates_nothing(
    sidecar: Serving, header: bytes
) -> None:
    manifest = ADAPTER.manifest(data_bytes=HUGE, safetensors_header=header, chunk_bytes=65536)
    error = await refusal(sidecar, manifest)
    assert reason(error) == "TooLarge"
    assert str(HUGE) in (error.details() or "")
    assert sidecar.store.extents() == []


async def test_an_adapter_that_never_fits_is_told_apart_from_a_full_arena(
    sidecar: Serving,
) -> None:
    large = source_adapter(2, rank=64, layers=18, width=2048)
    sidecar.service._profile_source = lambda: engine_profile(layers=18)
    error = await refusal(sidecar, large.manifest())
    assert reason(error) == "TooLarge"
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert f"the arena holds {LIMIT}" in (error.details() or "")


async def test_a_full_arena_says_how_full_it_is(sidecar: Serving) -> None:
    calls = [StageCall(sidecar.channel) for _ in range(LIMIT // EXTENT)]
    for seed, call in enumerate(calls):
        await call.manifest(source_adapter(seed).manifest())
    error = await refusal(sidecar, source_adapter(99).manifest())
    assert reason(error) == "StagingFull"
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "staging volume full: 16 MiB of 16 MiB used, need 2 MiB" in (error.details() or "")


MANIFESTS = {
    "no fingerprint": ({"fingerprint": ""}, "TransferInterrupted"),
    "endless fingerprint": ({"fingerprint": "x" * 1025}, "TransferInterrupted"),
    "no adapter": ({"adapter": ""}, "TransferInterrupted"),
    "chunks too small": ({"chunk_bytes": (64 << 10) - 1}, "TransferInterrupted"),
    "chunks too large": ({"chunk_bytes": (16 << 20) + 1}, "TransferInterrupted"),
    "no chunk size": ({"chunk_bytes": 0}, "TransferInterrupted"),
    "header too large": ({"safetensors_header": b" " * ((16 << 20) + 1)}, "InvalidAdapter"),
    "header is no JSON": ({"safetensors_header": b"\xff{"}, "InvalidAdapter"),
    "no header": ({"safetensors_header": b""}, "InvalidAdapter"),
    "no config": ({"adapter_config": b""}, "InvalidAdapter"),
    "too few digests": ({"tensor_digests": [bytes(32)]}, "TransferInterrupted"),
    "short digests": ({"tensor_digests": [bytes(31)] * TENSORS}, "TransferInterrupted"),
    "a long digest": (
        {"tensor_digests": [bytes(33), *[bytes(32)] * (TENSORS - 1)]},
        "TransferInterrupted",
    ),
    "a cut before nothing": ({"cut_before": [TENSORS]}, "TransferInterrupted"),
    "fewer bytes than the header says": ({"data_bytes": 10}, "InvalidAdapter"),
}


@pytest.mark.parametrize(("changes", "wanted"), MANIFESTS.values(), ids=MANIFESTS)
async def test_a_manifest_that_is_out_of_bounds_reserves_nothing(
    sidecar: Serving, changes: dict[str, object], wanted: str
) -> None:
    error = await refusal(sidecar, ADAPTER.manifest(**changes))
    assert reason(error) == wanted
    assert sidecar.store.extents() == []


async def test_without_an_engine_nothing_is_reserved(volume: Path) -> None:
    def no_engine() -> EngineProfile:
        raise EngineUnreachable("vLLM has not answered yet")

    async with serving(volume, profile=no_engine) as sidecar:
        error = await refusal(sidecar, ADAPTER.manifest())
        assert (reason(error), error.code()) == (
            "EngineUnreachable",
            grpc.StatusCode.UNAVAILABLE,
        )
        assert sidecar.store.extents() == []
