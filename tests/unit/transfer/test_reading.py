"""The source is read once for a transfer, in few requests, however its attempts end."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lorafleet.errors import SourceChanged, SourceUnavailable
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from lorafleet_operator.settings import OperatorSettings
from lorafleet_operator.transfer.fanout import chunk_step
from lorafleet_operator.transfer.reading import Reading
from lorafleet_operator.transfer.streaming import Limits, Payload

CHUNKS, SIZE = 40, 4
DATA = bytes(range(CHUNKS * SIZE))
PLAN = [(i * SIZE, SIZE) for i in range(CHUNKS)]
MIB = 1 << 20


class Source:
    def __init__(self) -> None:
        self.reads: list[tuple[int, int]] = []
        self.most = self.now = 0

    async def read(self, offset: int, length: int) -> bytes:
        self.reads.append((offset, length))
        self.now += length
        self.most = max(self.most, self.now)
        for _ in range(offset % 5):
            await asyncio.sleep(0)
        self.now -= length
        return DATA[offset : offset + length]

    def reading(self, window: int = 16, most: int = 0) -> Reading:
        payload = Payload(pb.AdapterManifest(adapter="a/b"), PLAN, self.read)
        return Reading(payload, Limits(window_chunks=window, read_bytes=most))


def chunk_of(message: bytes) -> tuple[int, bytes]:
    chunk = pb.StageAdapterRequest.FromString(message).chunk
    return chunk.offset // SIZE, chunk.data


@given(
    attempts=st.lists(
        st.tuples(st.sets(st.integers(0, CHUNKS - 1)), st.integers(0, CHUNKS)), max_size=4
    ),
    window=st.integers(1, 64),
    most=st.integers(0, 12 * SIZE),
)
@settings(deadline=None)
async def test_each_attempt_yields_what_it_lacks_and_reads_nothing_that_is_held(
    attempts: list[tuple[set[int], int]], window: int, most: int
) -> None:
    source = Source()
    reading = source.reading(window, most)
    for lacks, broken_after in [*attempts, (set(range(CHUNKS)), CHUNKS + 1)]:
        known = {chunk for chunk in range(CHUNKS) if reading._knows(chunk)}
        source.reads.clear()
        seen = []
        async with aclosing(reading.messages(sorted(lacks))) as messages:
            async for index, message in messages:
                assert chunk_of(message) == (index, DATA[index * SIZE : (index + 1) * SIZE])
                seen.append(index)
                if len(seen) > broken_after:
                    reading.keep(index, message)
                    break
        assert seen == sorted(lacks)[: broken_after + 1]
        await asyncio.sleep(0)  # reads that have just been ordered begin
        read = [
            chunk
            for offset, length in source.reads
            for chunk in range(offset // SIZE, (offset + length) // SIZE)
        ]
        assert len(read) == len(set(read)), "no chunk twice"
        assert lacks.issuperset(read)
        assert not known.intersection(read)
        assert all(length <= max(SIZE, most) for _, length in source.reads)
    await reading.close()


async def test_neighbouring_chunks_come_in_one_request_and_few_are_read_ahead() -> None:
    source = Source()
    reading = source.reading(window=32, most=4 * SIZE)
    async with aclosing(reading.messages(range(CHUNKS))) as messages:
        assert [index async for index, _ in messages] == list(range(CHUNKS))
    assert source.reads == [(at, 4 * SIZE) for at in range(0, CHUNKS * SIZE, 4 * SIZE)]
    assert source.most <= 12 * SIZE
    await reading.close()


async def test_what_is_being_read_when_an_attempt_breaks_is_not_read_again() -> None:
    source = Source()
    reading = source.reading(window=64)
    async with aclosing(reading.messages(range(CHUNKS))) as messages:
        async for index, message in messages:
            reading.keep(index, message)
            break
    async with aclosing(reading.messages([])) as messages:  # the next head is busy
        assert [index async for index, _ in messages] == []
    async with aclosing(reading.messages(range(CHUNKS))) as messages:
        assert [index async for index, _ in messages] == list(range(CHUNKS))
    assert sorted(source.reads) == PLAN
    await reading.close()


async def test_a_source_that_gives_less_than_it_has_is_not_believed() -> None:
    async def read(offset: int, length: int) -> bytes:
        return DATA[offset : offset + length - 1]

    reading = Reading(Payload(pb.AdapterManifest(adapter="a/b"), PLAN, read), Limits())
    with pytest.raises(SourceChanged, match="the source gave 3 bytes at 0, expected 4"):
        async with aclosing(reading.messages([0])) as messages:
            [_ async for _ in messages]
    await reading.close()


@pytest.mark.parametrize(
    ("mib", "kib"),
    [(0, 2048), (2, 2048), (3, 256), (32, 256), (64, 512), (256, 2048), (4096, 2048)],
)
def test_a_chunk_is_a_small_part_of_an_adapter_that_has_several(mib: int, kib: int) -> None:
    assert chunk_step(mib * MIB, OperatorSettings().chunk_bytes) == kib << 10
    assert chunk_step(mib * MIB, 64 << 10) == 64 << 10


async def test_a_source_that_does_not_confirm_what_was_read_holds_no_place_either() -> None:
    async def read(offset: int, length: int) -> bytes:
        return bytes(length)

    async def confirm() -> None:
        await asyncio.Event().wait()

    payload = Payload(pb.AdapterManifest(adapter="a/b"), PLAN, read, confirm)
    limits = Limits(least_source_rate=1.0, patience_seconds=0.01, others_wait=lambda: True)
    with pytest.raises(SourceUnavailable, match="others wait"):
        await Reading(payload, limits).confirm()
