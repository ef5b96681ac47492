"""Staging: one read of the source, sent to every engine that lacks it or to the heads of chains.

Each chunk is read once, checksummed once and encoded once; all engines are sent the same bytes
object. Queues are bounded, so the slowest engine sets the pace and at most `window_chunks` chunks
wait in memory however large the adapter is. An engine that fails or stalls leaves the transfer
and the others go on; what it has received stays there and the next attempt sends the rest.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import google_crc32c
from lorafleet.errors import LorafleetError, SourceChanged, TransferInterrupted, from_reason
from lorafleet.frames import encode_chunk, encode_commit, encode_manifest, encode_staging_id
from lorafleet.pulse import Pulse
from lorafleet.v1alpha1 import sidecar_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence

    from lorafleet_operator.transfer.client import ByteStream, SidecarClient
_T = TypeVar("_T")


@dataclass(frozen=True)
class Limits:
    """What bounds a transfer; the settings of the same names explain them."""

    window_chunks: int = 16
    stall_seconds: float = 60.0
    commit_seconds: float = 330.0
    chain_engines: int = 32
    """Engines of one chain: each adds what one chunk takes to the time of the last."""
    pace: Callable[[int], Awaitable[None]] | None = None
    """Awaited before so many bytes are sent to an engine."""


@dataclass(frozen=True)
class Payload:
    """One adapter to stage: its manifest, its cuts, and where its bytes come from."""

    manifest: pb.AdapterManifest
    plan: Sequence[tuple[int, int]]
    """(offset, length) of each chunk: lorafleet.layout.chunk_plan of the manifest."""
    read: Callable[[int, int], Awaitable[bytes | bytearray | memoryview]]
    """Reads (offset, length) of the source's data section."""
    confirm: Callable[[], Awaitable[None]] | None = None
    """Awaited when all is read, before any engine may commit; raises if it was not one version."""


async def stage(
    payload: Payload,
    engines: Mapping[str, SidecarClient],
    limits: Limits,
    on_sent: Callable[[int], None] = lambda _: None,
    behind: Mapping[str, Sequence[pb.Neighbour]] | None = None,
    unsent: dict[int, bytes] | None = None,
) -> dict[str, pb.StagedRevision | LorafleetError]:
    """Stage `payload` on all `engines`; return for each what it committed, or why it did not.

    An engine passes what it gets on to those `behind` it; what is known of these is returned too,
    by pod UID. `on_sent` is called with the bytes of each chunk and engine. `unsent` holds
    what was read for an engine that failed, by index, at most a window of each: it is used here,
    and what this attempt leaves is put there. Raises what `payload.read` raises: then the source is
    to blame and no engine.
    """
    behind = behind or {}
    unsent = {} if unsent is None else unsent
    lanes = {
        key: _Lane(client, payload, limits, on_sent, behind.get(key, ()), unsent)
        for key, client in engines.items()
    }
    try:
        await asyncio.gather(*(lane.open() for lane in lanes.values()))
        async with asyncio.TaskGroup() as group:
            for lane in lanes.values():
                if lane.unfinished:
                    group.create_task(lane.send())
            feed = group.create_task(_feed(payload, list(lanes.values()), limits, unsent))
        if (error := feed.result()) is not None:
            raise error
    finally:
        await asyncio.gather(*(lane.close() for lane in lanes.values()))
    found = {key: lane.result() for key, lane in lanes.items()}
    for lane in lanes.values():
        found.update(lane.followers)
    return found


async def _feed(
    payload: Payload, lanes: list[_Lane], limits: Limits, unsent: dict[int, bytes]
) -> Exception | None:
    """Hand the source's chunks to the lanes; return what broke the source.

    What was read by then still goes out, so that the next attempt need not send it again.
    """
    wanted = sorted(set[int]().union(*(lane.missing for lane in lanes if lane.unfinished)))
    broke: Exception | None = None
    try:
        ahead = max(2, limits.window_chunks // 4)
        async with aclosing(_messages(payload, wanted, ahead, unsent)) as messages:
            async for index, message in messages:
                for lane in lanes:
                    if index in lane.missing and lane.unfinished:
                        await lane.queue.put((index, message))
                if not any(lane.unfinished for lane in lanes):
                    break  # nobody is left to read for
        if payload.confirm is not None and any(lane.unfinished for lane in lanes):
            await payload.confirm()
    except Exception as error:
        broke = error
        for lane in lanes:
            lane.complete = False
    for lane in lanes:
        await lane.end()
    return broke


async def _messages(
    payload: Payload, indexes: Sequence[int], ahead: int, unsent: dict[int, bytes]
) -> AsyncGenerator[tuple[int, bytes], None]:
    """Yield (index, encoded chunk) in order, reading up to `ahead` chunks at once."""
    reads: list[tuple[int, asyncio.Task[bytes]]] = []
    upcoming = iter(indexes)
    try:
        while True:
            while len(reads) < ahead and (index := next(upcoming, None)) is not None:
                reads.append((index, asyncio.create_task(_message(payload, index, unsent))))
            if not reads:
                return
            index, task = reads.pop(0)
            try:
                message = await task
            finally:
                task.cancel()
            yield index, message
    finally:
        for _, task in reads:
            task.cancel()
        await asyncio.gather(*(task for _, task in reads), return_exceptions=True)


async def _message(payload: Payload, index: int, unsent: dict[int, bytes]) -> bytes:
    if index in unsent:
        return unsent.pop(index)
    offset, length = payload.plan[index]
    found = await payload.read(offset, length)
    data = found if isinstance(found, bytes) else bytes(found)
    if len(data) != length:
        raise SourceChanged(
            f"adapter {payload.manifest.adapter}: the source gave {len(data)} bytes at {offset}, "
            f"expected {length}"
        )
    return encode_chunk(offset, google_crc32c.value(data), data)


def outcome_of(reported: pb.ForwardOutcome) -> pb.StagedRevision | LorafleetError:
    """Return what a neighbour committed, or the error that it was reported with."""
    if reported.HasField("committed"):
        return reported.committed
    return from_reason(reported.reason, reported.message)


class _Lane:
    """One engine's side of a transfer."""

    def __init__(
        self,
        client: SidecarClient,
        payload: Payload,
        limits: Limits,
        on_sent: Callable[[int], None],
        behind: Sequence[pb.Neighbour],
        unsent: dict[int, bytes],
    ) -> None:
        self.client = client
        self.followers: dict[str, pb.StagedRevision | LorafleetError] = {}
        """What the engine says of those behind it, by pod UID."""
        self.complete = True
        """Whether all chunks will come: without them there is nothing to commit."""
        self.missing: frozenset[int] = frozenset()
        self.queue: asyncio.Queue[tuple[int, bytes] | None] = asyncio.Queue(
            max(1, limits.window_chunks - limits.window_chunks // 4)
        )
        self._payload = payload
        self._behind = behind
        self._unsent = unsent
        self._limits = limits
        self._on_sent = on_sent
        self._control = client.stage()
        self._question = client.question()
        name = f"sidecar at {client.address}"
        self._pulse = Pulse(name, self._question.ask, limits.stall_seconds, TransferInterrupted)
        self._ports: tuple[int, ...] = ()
        self._staging_id = ""
        self._accepted = False
        self._outcome: pb.StagedRevision | LorafleetError | None = None

    @property
    def unfinished(self) -> bool:
        """Whether the engine still takes chunks."""
        return self._outcome is None

    def result(self) -> pb.StagedRevision | LorafleetError:
        """Return what came of it; valid once the lane has ended."""
        assert self._outcome is not None
        return self._outcome

    async def open(self) -> None:
        """Send the manifest and learn what is missing."""
        manifest = pb.AdapterManifest(forward_to=self._behind)
        manifest.MergeFrom(self._payload.manifest)
        try:
            opening = encode_manifest(manifest.SerializeToString())
            await self._timed(self._control.write(opening), "take the manifest")
            answer = await self._timed(self._control.read(), "answer the manifest")
        except LorafleetError as error:
            self._outcome = error
            return
        if answer.WhichOneof("message") == "committed":
            self._outcome = answer.committed
            return
        missing = frozenset(answer.accepted.missing_chunks)
        if missing and max(missing) >= len(self._payload.plan):
            self._outcome = TransferInterrupted(
                f"sidecar at {self.client.address} asks for chunk {max(missing)}, "
                f"the plan has {len(self._payload.plan)} chunks"
            )
            return
        self.missing = missing
        self._ports = tuple(answer.accepted.receiver_ports)
        self._staging_id = answer.accepted.staging_id
        self._accepted = True

    async def send(self) -> None:
        """Send what the queue brings, then commit. Errors become the result."""
        try:
            if self._ports:
                await asyncio.gather(*(self._stripe(port) for port in self._ports))
            else:
                await self._drain(self._control)
            if self.unfinished and not self.complete:
                await self._timed(self._control.finish(), "end the transfer")
            elif self.unfinished:
                await self._timed(self._control.write(encode_commit()), "take the commit")
                answer = await self._timed(
                    self._control.read(), "commit", self._limits.commit_seconds
                )
                if answer.WhichOneof("message") == "forwarded":
                    self.followers = {
                        each.pod_uid: outcome_of(each) for each in answer.forwarded.outcomes
                    }
                    answer = await self._timed(self._control.read(), "commit")
                self._outcome = answer.committed
        except LorafleetError as error:
            self._outcome = self._outcome or error

    async def end(self) -> None:
        """Say that no chunk follows: one mark for each consumer of the queue."""
        if self._accepted:
            for _ in self._ports or (0,):
                await self.queue.put(None)

    async def close(self) -> None:
        """End the control stream; harmless when it has ended."""
        self._control.cancel()
        await self._pulse.stop()
        await self._question.close()

    async def _stripe(self, port: int) -> None:
        stream = self.client.stripe(port)
        try:
            opening = encode_staging_id(self._staging_id)
            await self._attempt(stream.write(opening), "open a stripe")
            await self._drain(stream)
            if self.unfinished:
                await self._attempt(stream.finish(), "end a stripe")
        finally:
            stream.cancel()

    async def _drain(self, stream: ByteStream) -> None:
        """Send until the end mark. An engine that is out still empties its queue: the feeder
        must never wait for it."""
        while (item := await self.queue.get()) is not None:
            index, message = item
            if self.unfinished and self._limits.pace is not None:
                await self._limits.pace(len(message))
            if self.unfinished:
                await self._attempt(stream.write(message), "take a chunk")
            if self.unfinished:
                self._on_sent(len(message))
            else:
                self._unsent[index] = message

    async def _attempt(self, step: Awaitable[object], what: str) -> None:
        try:
            await self._timed(step, what)
        except LorafleetError as error:
            self._outcome = self._outcome or error

    async def _timed(self, step: Awaitable[_T], what: str, seconds: float = 0.0) -> _T:
        async with self._pulse.within(seconds or self._limits.stall_seconds, what):
            return await step
