"""Fan-out against engines that fail, stall or stripe: small classes at the client's seam."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lorafleet import frames
from lorafleet.errors import (
    EngineUnreachable,
    LorafleetError,
    SourceUnavailable,
    TransferInterrupted,
)
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from lorafleet_operator.transfer.streaming import Limits, Payload, stage

CHUNKS, SIZE = 12, 8
DATA = bytes(range(CHUNKS * SIZE))
PLAN = [(i * SIZE, SIZE) for i in range(CHUNKS)]
LIMITS = Limits(window_chunks=4, stall_seconds=60, commit_seconds=60)


@dataclass
class Engine:
    """A sidecar in memory; `fails_after` and `stalls_after` count chunks that it took."""

    missing: list[int] = field(default_factory=lambda: list(range(CHUNKS)))
    stripes: int = 0
    fails_after: int = 1 << 30
    stalls_after: int = 1 << 30
    fails_at_end: bool = False
    dead: bool = False
    received: list[int] = field(default_factory=list)
    committed: bool = False
    address: str = "engine:7070"

    def stage(self) -> Stream:
        return Stream(self)

    def stripe(self, port: int) -> Stream:
        return Stream(self, pb.SendChunksRequest)

    def question(self) -> Question:
        return Question(self.dead)


@dataclass
class Question:
    dead: bool

    async def ask(self) -> None:
        if self.dead:
            raise EngineUnreachable("connection refused")

    async def close(self) -> None:
        pass


@dataclass
class Stream:
    engine: Engine
    request: type[pb.StageAdapterRequest] | type[pb.SendChunksRequest] = pb.StageAdapterRequest

    async def write(self, message: bytes) -> None:
        if message == frames.encode_commit():
            assert sorted(self.engine.received) == sorted(self.engine.missing)
            self.engine.committed = True
            return
        request = self.request.FromString(message)
        if request.WhichOneof("message") != "chunk":
            return
        chunk = request.chunk
        if len(self.engine.received) >= self.engine.stalls_after:
            await asyncio.Event().wait()
        if len(self.engine.received) >= self.engine.fails_after:
            raise TransferInterrupted("the stream broke")
        assert chunk.data == DATA[chunk.offset : chunk.offset + SIZE]
        self.engine.received.append(chunk.offset // SIZE)
        await asyncio.sleep(0)

    async def read(self) -> pb.StageAdapterResponse:
        if self.engine.committed:
            return pb.StageAdapterResponse(committed=pb.StagedRevision(digest="sha256:x"))
        accepted = pb.StagingAccepted(
            staging_id="s",
            missing_chunks=self.engine.missing,
            receiver_ports=range(1, self.engine.stripes + 1),
        )
        return pb.StageAdapterResponse(accepted=accepted)

    async def finish(self) -> pb.SendChunksResponse:
        if self.engine.fails_at_end:
            raise TransferInterrupted("the receiver went away")
        return pb.SendChunksResponse()

    def cancel(self) -> None:
        pass


async def run(
    *engines: Engine, broken_at: int = 1 << 30, limits: Limits = LIMITS
) -> tuple[dict[str, pb.StagedRevision | LorafleetError], list[int]]:
    reads: list[int] = []

    async def read(offset: int, length: int) -> bytes:
        if offset // SIZE >= broken_at:
            raise SourceUnavailable("gone")
        reads.append(offset // SIZE)
        return DATA[offset : offset + length]

    payload = Payload(pb.AdapterManifest(adapter="team-a/sql"), PLAN, read)
    clients = {str(i): engine for i, engine in enumerate(engines)}
    return await stage(payload, clients, limits), reads  # type: ignore[arg-type]


async def test_only_what_some_engine_lacks_is_read_and_each_gets_only_what_it_lacks() -> None:
    first, second = Engine(missing=[1, 2]), Engine(missing=[2, 7])
    results, reads = await run(first, second)
    assert reads == [1, 2, 7]
    assert (first.received, second.received) == ([1, 2], [2, 7])
    assert all(isinstance(result, pb.StagedRevision) for result in results.values())


async def test_an_engine_that_has_all_chunks_is_only_asked_to_commit() -> None:
    engine = Engine(missing=[])
    _, reads = await run(engine)
    assert reads == []
    assert engine.committed


async def test_an_engine_that_stalls_is_left_behind_with_a_clear_line() -> None:
    hasty = replace(LIMITS, stall_seconds=0.2)
    results, _ = await run(Engine(stalls_after=3), Engine(), limits=hasty)
    assert isinstance(results["0"], TransferInterrupted)
    assert "did not take a chunk within" in str(results["0"])
    assert isinstance(results["1"], pb.StagedRevision)


async def test_an_engine_that_is_dead_is_left_long_before_it_counts_as_slow() -> None:
    patient = replace(LIMITS, stall_seconds=3600)
    results, _ = await run(Engine(stalls_after=3, dead=True), Engine(), limits=patient)
    assert str(results["0"]) == "connection refused"
    assert isinstance(results["1"], pb.StagedRevision)


async def test_a_stripe_that_fails_at_its_end_fails_its_engine_alone() -> None:
    results, _ = await run(Engine(stripes=3, fails_at_end=True), Engine(stripes=2))
    assert isinstance(results["0"], TransferInterrupted)
    assert isinstance(results["1"], pb.StagedRevision)


async def test_the_sources_error_comes_out_as_it_is() -> None:
    engines = Engine(), Engine(stripes=2)
    with pytest.raises(SourceUnavailable, match="gone"):
        await run(*engines, broken_at=5)
    for engine in engines:  # what was read before has gone out, and nothing was committed
        assert sorted(engine.received) == [0, 1, 2, 3, 4]
        assert not engine.committed


async def test_the_pace_is_asked_before_every_byte_that_is_sent() -> None:
    asked: list[int] = []
    sent: list[int] = []

    async def pace(amount: int) -> None:
        assert asked == sent
        asked.append(amount)

    async def read(offset: int, length: int) -> bytes:
        return DATA[offset : offset + length]

    payload = Payload(pb.AdapterManifest(adapter="team-a/sql"), PLAN, read)
    await stage(payload, {"0": Engine()}, Limits(pace=pace), sent.append)  # type: ignore[dict-item]
    assert asked == sent
    assert len(sent) == CHUNKS


ENGINES = st.builds(
    Engine,
    missing=st.lists(st.integers(0, CHUNKS - 1), unique=True).map(sorted),
    stripes=st.integers(0, 3),
    fails_after=st.sampled_from([0, 1, 5, 1 << 30]),
    fails_at_end=st.booleans(),
)


@given(st.lists(ENGINES, min_size=1, max_size=4))
@settings(deadline=None, max_examples=60)
def test_whoever_fails_the_transfer_ends_and_each_chunk_is_read_once(engines: list[Engine]) -> None:
    results, reads = asyncio.run(asyncio.wait_for(run(*engines), 60))
    assert len(results) == len(engines)
    assert sorted(reads) == sorted(set(reads))
    for engine, result in zip(engines, results.values(), strict=True):
        spared = engine.fails_after >= len(engine.missing)
        spared = spared and not (engine.fails_at_end and engine.stripes)
        assert isinstance(result, pb.StagedRevision) is spared
        assert len(engine.received) == len(set(engine.received))
