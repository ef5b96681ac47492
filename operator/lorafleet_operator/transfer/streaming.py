"""Staging: one read of the source, sent to every engine that lacks it or to the heads of chains.

Each chunk is read once, checksummed once and encoded once; all engines are sent the same bytes
object. Queues are bounded, so the slowest engine sets the pace and at most `window_chunks` chunks
wait in memory however large the adapter is. An engine that fails or stalls leaves the transfer
and the others go on; what it has received stays there and the next attempt sends the rest.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from lorafleet.errors import LorafleetError, TransferInterrupted, from_reason
from lorafleet.frames import encode_commit, encode_manifest, encode_staging_id
from lorafleet.pulse import Pulse
from lorafleet.v1alpha1 import sidecar_pb2 as pb

from lorafleet_operator.transfer.reading import Reading

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from lorafleet_operator.transfer.client import ByteStream, SidecarClient
_T = TypeVar("_T")


@dataclass(frozen=True)
class Limits:
    """What bounds a transfer; the settings of the same names explain them."""

    window_chunks: int = 16
    """Chunks in memory: a quarter being read, a quarter read, and the last half that was sent."""
    read_bytes: int = 0
    """Bytes to ask the source for at once, one chunk at least."""
    stall_seconds: float = 60.0
    commit_seconds: float = 330.0
    chain_engines: int = 32
    """Engines of one chain: each adds what one chunk takes to the time of the last."""
    pace: Callable[[int], Awaitable[None]] | None = None
    """Awaited before so many bytes are sent to an engine."""
    least_source_rate: float = 0.0
    """Bytes a second that a source has to give while others wait, 0 for any."""
    patience_seconds: float = 30.0
    """How long it may give less; twice as long for each of the last `lost` attempts."""
    lost: int = 0
    """Attempts in a row that ended for the source and left nothing: one that has to be read from its
    beginning each time would else never come to its end while others wait."""
    others_wait: Callable[[], bool] = lambda: False
    """Whether anybody waits for this transfer to end."""


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
    reading: Reading | None = None,
) -> dict[str, pb.StagedRevision | LorafleetError]:
    """Stage `payload` on all `engines`; return for each what it committed, or why it did not.

    An engine passes what it gets on to those `behind` it; what is known of these is returned too,
    by pod UID. `on_sent` is called with the bytes of each chunk and engine. Several attempts share
    a `reading`, so that none reads what another has read. Raises what `payload.read` raises: then
    the source is to blame and no engine.
    """
    if reading is None:
        reading = Reading(payload, limits)
        try:
            return await stage(payload, engines, limits, on_sent, behind, reading)
        finally:
            await reading.close()
    behind = behind or {}
    lanes = {
        key: _Lane(client, payload, limits, on_sent, behind.get(key, ()), reading)
        for key, client in engines.items()
    }
    try:
        await asyncio.gather(*(lane.open() for lane in lanes.values()))
        async with asyncio.TaskGroup() as group:
            for lane in lanes.values():
                if lane.unfinished:
                    group.create_task(lane.send())
            feed = group.create_task(_feed(list(lanes.values()), reading))
        if (error := feed.result()) is not None:
            raise error
    finally:
        await asyncio.gather(*(lane.close() for lane in lanes.values()))
    found = {key: lane.result() for key, lane in lanes.items()}
    for lane in lanes.values():
        found.update(lane.followers)
    return found


async def _feed(lanes: list[_Lane], reading: Reading) -> Exception | None:
    """Hand the source's chunks to the lanes; return what broke the source.

    What was read by then still goes out, so that the next attempt need not send it again.
    """
    wanted = sorted(set[int]().union(*(lane.missing for lane in lanes if lane.unfinished)))
    broke: Exception | None = None
    try:
        async with aclosing(reading.messages(wanted)) as messages:
            async for index, message in messages:
                for lane in lanes:
                    if index in lane.missing and lane.unfinished:
                        await lane.queue.put((index, message))
                if not any(lane.unfinished for lane in lanes):
                    reading.keep(index, message)
                    break  # nobody is left to read for
        if any(lane.unfinished for lane in lanes):
            await reading.confirm()
    except Exception as error:
        broke = error
        for lane in lanes:
            lane.complete = False
    for lane in lanes:
        await lane.end()
    return broke


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
        reading: Reading,
    ) -> None:
        self.client = client
        self.followers: dict[str, pb.StagedRevision | LorafleetError] = {}
        """What the engine says of those behind it, by pod UID."""
        self.complete = True
        """Whether all chunks will come: without them there is nothing to commit."""
        self.missing: frozenset[int] = frozenset()
        self.queue: asyncio.Queue[tuple[int, bytes] | None] = asyncio.Queue(
            max(1, limits.window_chunks // 4)
        )
        self._sent: deque[tuple[int, bytes]] = deque(maxlen=limits.window_chunks // 2)
        self._payload = payload
        self._behind = behind
        self._reading = reading
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
        """End the control stream; harmless when it has ended.

        What a head that failed was sent last, it may not have passed on.
        """
        if isinstance(self._outcome, LorafleetError):
            for index, message in self._sent:
                self._reading.keep(index, message)
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
                if self._behind:
                    self._sent.append(item)
            else:
                self._reading.keep(index, message)

    async def _attempt(self, step: Awaitable[object], what: str) -> None:
        try:
            await self._timed(step, what)
        except LorafleetError as error:
            self._outcome = self._outcome or error

    async def _timed(self, step: Awaitable[_T], what: str, seconds: float = 0.0) -> _T:
        async with self._pulse.within(seconds or self._limits.stall_seconds, what):
            return await step
