"""Broken and malicious transfers: each gets its reason, and no arena space leaks.

Not here: what a manifest promises (test_stage_manifest.py), what preflight refuses in an adapter
(tests of `lorafleet.layout`), and kills of the processes (test_stage_kill.py).
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import ml_dtypes
import numpy as np
import pytest
from lorafleet import frames
from lorafleet_sidecar.transfer_service import TransferSettings
from staging_builders import source_adapter
from staging_client import SERVICE, StageCall, reason, send_stripe, stage
from staging_fixtures import EXTENT, failure, open_files, refusal, reserved, sidecar
from staging_server import Serving, serving

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["sidecar"]  # a fixture

ADAPTER = source_adapter(1)
CUTS = ADAPTER.cuts()


async def assert_resumes(sidecar: Serving, received: list[int]) -> None:
    """The transfer goes on with exactly the chunks that have not arrived."""
    revision, sent = await stage(sidecar.channel, ADAPTER)
    assert sent == [index for index in range(len(CUTS)) if index not in received]
    assert [info.digest for info in sidecar.store.revisions()] == [revision.digest]
    assert reserved(sidecar) == 0


async def test_an_adapter_is_staged_whole(sidecar: Serving) -> None:
    revision, sent = await stage(sidecar.channel, ADAPTER)
    assert sent == list(range(len(CUTS)))
    assert len(CUTS) > 3
    assert (revision.size_bytes, revision.rank, revision.adapter) == (EXTENT, 8, ADAPTER.name)
    again, sent = await stage(sidecar.channel, ADAPTER)
    assert (again, sent) == (revision, [])
    facts = json.loads((sidecar.store.revision_dir(revision.digest) / "revision.json").read_bytes())
    module = facts["modules"]["model.layers.1.self_attn.v_proj"]
    start = facts["data_offset"] + module["b"]["offset"]
    size = 2048 * 8 * 2
    assert ADAPTER.data.endswith(bytes(sidecar.store.arena.view[start : start + size]))
    assert sidecar.service.received_bytes == len(ADAPTER.data)


async def test_a_wrong_checksum_ends_the_stream_and_costs_only_that_chunk(sidecar: Serving) -> None:
    call = StageCall(sidecar.channel)
    await call.manifest(ADAPTER.manifest())
    await call.chunk(*ADAPTER.chunk(*CUTS[0]))
    offset, crc32c, data = ADAPTER.chunk(*CUTS[1])
    await call.chunk(offset, crc32c ^ 1, data)
    error = await failure(call)
    assert reason(error) == "TransferInterrupted"
    assert error.code() == grpc.StatusCode.ABORTED
    assert f"has crc32c {crc32c:08x}, expected {crc32c ^ 1:08x}" in (error.details() or "")
    assert reserved(sidecar) == EXTENT
    await assert_resumes(sidecar, [0])


async def test_another_digest_than_promised_is_refused_and_nothing_kept(sidecar: Serving) -> None:
    call = StageCall(sidecar.channel)
    await call.manifest(ADAPTER.manifest(expected_digest="sha256:" + "0" * 64))
    for cut in CUTS:
        await call.chunk(*ADAPTER.chunk(*cut))
    await call.raw(frames.encode_commit())
    error = await failure(call)
    assert reason(error) == "DigestMismatch"
    assert "promised was sha256:000" in (error.details() or "")
    assert sidecar.store.extents() == []
    assert sidecar.store.revisions() == []


async def test_a_present_revision_is_also_held_against_the_promised_digest(
    sidecar: Serving,
) -> None:
    await stage(sidecar.channel, ADAPTER)
    error = await refusal(sidecar, ADAPTER.manifest(expected_digest="sha256:" + "0" * 64))
    assert reason(error) == "DigestMismatch"
    assert len(sidecar.store.revisions()) == 1


OFFSET, LENGTH = CUTS[1]
OUT_OF_PLAN = {
    "behind the data": (len(ADAPTER.data), LENGTH),
    "far behind the data": (1 << 63, LENGTH),
    "between two cuts": (OFFSET + 2, LENGTH),
    "longer than its cut": (OFFSET, LENGTH + 2),
    "over two cuts": (OFFSET, LENGTH * 2),
    "shorter than its cut": (OFFSET, LENGTH - 2),
    "empty": (OFFSET, 0),
}


@pytest.mark.parametrize("offset_length", OUT_OF_PLAN.values(), ids=OUT_OF_PLAN)
async def test_a_chunk_that_the_plan_does_not_hold_is_refused(
    sidecar: Serving, offset_length: tuple[int, int]
) -> None:
    offset, length = offset_length
    call = StageCall(sidecar.channel)
    await call.manifest(ADAPTER.manifest())
    await call.chunk(offset, *ADAPTER.chunk(0, length)[1:])
    error = await failure(call)
    assert reason(error) == "TransferInterrupted"
    assert f"chunk of {length} bytes at offset {offset} is not in the plan" in (
        error.details() or ""
    )
    await assert_resumes(sidecar, [])


async def test_a_chunk_that_came_before_is_refused(sidecar: Serving) -> None:
    call = StageCall(sidecar.channel)
    await call.manifest(ADAPTER.manifest())
    await call.chunk(*ADAPTER.chunk(*CUTS[0]))
    await call.chunk(*ADAPTER.chunk(*CUTS[0]))
    error = await failure(call)
    assert (reason(error), error.details()) == ("TransferInterrupted", "chunk 0 was sent twice")
    await assert_resumes(sidecar, [0])


async def test_silence_ends_the_stream_keeps_the_chunks_and_later_frees_them(volume: Path) -> None:
    settings = TransferSettings(stall_seconds=0.2, resume_seconds=2)
    async with serving(volume, settings=settings) as sidecar:
        call = StageCall(sidecar.channel)
        await call.manifest(ADAPTER.manifest())
        with suppress(grpc.aio.AioRpcError):  # a busy machine is as silent before it
            await call.chunk(*ADAPTER.chunk(*CUTS[0]))
        error = await failure(call)
        assert reason(error) == "TransferInterrupted"
        assert "nothing arrived for 0.2 s" in (error.details() or "")
        assert reserved(sidecar) == EXTENT
        async with asyncio.timeout(60):
            while sidecar.store.extents():
                await asyncio.sleep(0.05)
        assert list((volume / "staging").iterdir()) == []


async def test_silence_before_the_manifest_ends_the_stream_too(volume: Path) -> None:
    async with serving(volume, settings=TransferSettings(stall_seconds=0.2)) as sidecar:
        call = StageCall(sidecar.channel)
        assert reason(await failure(call)) == "TransferInterrupted"
        stripe = send_stripe(sidecar.channel, "0" * 32, [])
        with pytest.raises(grpc.aio.AioRpcError):
            await stripe


async def test_a_client_that_vanishes_leaves_a_transfer_that_resumes(sidecar: Serving) -> None:
    call = StageCall(sidecar.channel)
    await call.manifest(ADAPTER.manifest())
    await call.chunk(*ADAPTER.chunk(*CUTS[0]))
    [entry] = sidecar.store.stagings()
    staged = sidecar.store.volume / "staging" / entry.staging_id / "received"
    while staged.read_bytes()[0] == 0:
        await asyncio.sleep(0.01)
    call.call.cancel()
    while sidecar.service.stagings._active:
        await asyncio.sleep(0.01)
    assert reserved(sidecar) == EXTENT
    await assert_resumes(sidecar, [0])


async def test_one_writer_at_a_time_for_one_source(sidecar: Serving) -> None:
    first = StageCall(sidecar.channel)
    await first.manifest(ADAPTER.manifest())
    error = await refusal(sidecar, ADAPTER.manifest())
    assert (reason(error), error.code()) == ("StagingBusy", grpc.StatusCode.ABORTED)
    assert reserved(sidecar) == EXTENT
    for cut in CUTS:
        await first.chunk(*ADAPTER.chunk(*cut))
    assert (await first.commit()).fingerprint == ADAPTER.fingerprint
    assert reserved(sidecar) == 0


async def test_two_sources_of_equal_content_end_as_one_revision(sidecar: Serving) -> None:
    calls = [StageCall(sidecar.channel), StageCall(sidecar.channel)]
    for number, call in enumerate(calls):
        await call.manifest(ADAPTER.manifest(fingerprint=f"source-{number}"))
    assert reserved(sidecar) == 2 * EXTENT
    for call in calls:
        for cut in CUTS:
            await call.chunk(*ADAPTER.chunk(*cut))
    first, second = await asyncio.gather(*(call.commit() for call in calls))
    assert first.digest == second.digest
    assert {first.fingerprint, second.fingerprint} == {"source-0", "source-1"}
    assert reserved(sidecar) == 0
    assert [info.digest for info in sidecar.store.revisions()] == [first.digest]
    assert len(sidecar.store.extents()) == 1
    facts = json.loads((sidecar.store.revision_dir(first.digest) / "revision.json").read_bytes())
    assert facts["extent_offset"] == sidecar.store.extents()[0].offset


@pytest.mark.parametrize(
    "staging_id",
    ["", ".", "..", "../" * 8 + "etc/passwd", "/etc/passwd", "A" * 32, "0" * 31, "0" * 33, "0" * 32,
     "0" * 30 + "/.", "\u0660" * 32, "a" * 31 + "\n"],
)  # fmt: skip
async def test_a_staging_id_that_was_not_given_out_opens_nothing(
    sidecar: Serving, staging_id: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await send_stripe(sidecar.channel, staging_id, [ADAPTER.chunk(*CUTS[0])])
    assert reason(caught.value) == "TransferInterrupted"
    assert "staging" in (caught.value.details() or "")


async def test_stripes_deliver_what_the_stream_then_commits(sidecar: Serving) -> None:
    call = StageCall(sidecar.channel)
    accepted = (await call.manifest(ADAPTER.manifest())).accepted
    stripes = [
        send_stripe(
            sidecar.channel, accepted.staging_id, [ADAPTER.chunk(*cut) for cut in CUTS[at::3]]
        )
        for at in range(3)
    ]
    assert sum(await asyncio.gather(*stripes)) == len(ADAPTER.data)
    assert (await call.commit()).size_bytes == EXTENT


async def test_a_stripe_without_its_stream_writes_nothing(sidecar: Serving) -> None:
    call = StageCall(sidecar.channel)
    accepted = (await call.manifest(ADAPTER.manifest())).accepted
    await call.raw(b"")  # breaks the stream
    await failure(call)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await send_stripe(sidecar.channel, accepted.staging_id, [ADAPTER.chunk(*CUTS[0])])
    assert reason(caught.value) == "TransferInterrupted"
    assert "ended or taken over" in (caught.value.details() or "")
    await assert_resumes(sidecar, [])


async def test_stripes_that_break_off_at_any_moment_leave_no_file_open(
    sidecar: Serving, volume: Path
) -> None:
    call = StageCall(sidecar.channel)
    staging_id = (await call.manifest(ADAPTER.manifest())).accepted.staging_id
    before = open_files(volume)
    opening = frames.encode_staging_id(staging_id)
    chunk = frames.encode_chunk(*ADAPTER.chunk(*CUTS[0]), frames.SEND_CHUNK_FIELD)
    channel: Any = sidecar.channel
    for attempt in range(200):
        stripe = channel.stream_unary(SERVICE + "SendChunks")()
        await stripe.write(opening)
        if attempt % 2:
            await stripe.write(chunk)
        await asyncio.sleep(attempt % 20 / 5000)
        stripe.cancel()
    async with asyncio.timeout(60):
        while open_files(volume) != before:
            await asyncio.sleep(0.05)


async def test_a_commit_with_chunks_missing_is_refused(sidecar: Serving) -> None:
    call = StageCall(sidecar.channel)
    await call.manifest(ADAPTER.manifest())
    await call.chunk(*ADAPTER.chunk(*CUTS[0]))
    await call.raw(frames.encode_commit())
    error = await failure(call)
    assert reason(error) == "TransferInterrupted"
    missing = len(CUTS) - 1
    assert f"commit with {missing} of {len(CUTS)} chunks missing (first: 1)" in (
        error.details() or ""
    )
    await assert_resumes(sidecar, [0])


CHUNK = frames.encode_chunk(*ADAPTER.chunk(*CUTS[0]))
LATER_MESSAGES = {
    "nothing": b"",
    "half a chunk": CHUNK[: len(CHUNK) // 2],
    "a chunk and more": CHUNK + b"\x00",
    "a second manifest": frames.encode_manifest(ADAPTER.manifest().SerializeToString()),
    "noise": b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
}


@pytest.mark.parametrize("message", LATER_MESSAGES.values(), ids=LATER_MESSAGES)
async def test_noise_inside_of_a_transfer_ends_the_stream_only(
    sidecar: Serving, message: bytes
) -> None:
    call = StageCall(sidecar.channel)
    await call.manifest(ADAPTER.manifest())
    await call.raw(message)
    assert reason(await failure(call)) == "TransferInterrupted"
    await assert_resumes(sidecar, [])


@pytest.mark.parametrize("striped", [False, True])
async def test_a_value_that_is_not_finite_ends_the_transfer_for_good(
    sidecar: Serving, *, striped: bool
) -> None:
    name = "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"
    values = np.zeros((8, 2048), ml_dtypes.bfloat16)
    values[7, 2047] = np.nan
    bad = source_adapter(3, replace={name: values})
    call = StageCall(sidecar.channel)
    accepted = (await call.manifest(bad.manifest())).accepted
    chunks = [bad.chunk(*cut) for cut in bad.cuts()]
    if striped:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await send_stripe(sidecar.channel, accepted.staging_id, chunks)
        error = caught.value
        await call.raw(frames.encode_commit())
        await failure(call)
    else:
        for chunk in chunks:
            await call.chunk(*chunk)
        error = await failure(call)
    assert reason(error) == "InvalidAdapter"
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert error.details() == f"adapter {bad.name}: non-finite values in {name}"
    assert sidecar.store.extents() == []
    assert list((sidecar.store.volume / "staging").iterdir()) == []


async def test_a_changed_source_does_not_continue_the_old_transfer(sidecar: Serving) -> None:
    call = StageCall(sidecar.channel)
    await call.manifest(ADAPTER.manifest())
    await call.chunk(*ADAPTER.chunk(*CUTS[0]))
    await call.raw(b"")
    await failure(call)
    other = source_adapter(1, rank=16)
    again = StageCall(sidecar.channel)
    accepted = (await again.manifest(other.manifest(fingerprint=ADAPTER.fingerprint))).accepted
    assert list(accepted.missing_chunks) == list(range(len(other.cuts())))
    assert reserved(sidecar) == EXTENT
