"""The rest of a chain, seen from one of its sidecars: chunks are passed on while they arrive.

    operator -> head -> second -> third -> ..

Each sidecar checks a chunk, keeps it and sends the same message to the next. Nothing piles up: a
few messages wait for the neighbour, and while they do the sidecar reads no further ones. A
neighbour that fails or takes nothing for the stall time is left out: the one behind it is linked
to, and is sent again what of the latest messages it lacks. What it lacks beyond those stays
missing there; whoever began the chain is told by the outcomes and sends the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING

from lorafleet.errors import LorafleetError, StagingBusy
from lorafleet.v1alpha1 import sidecar_pb2 as pb

from lorafleet_sidecar.crashpoint import crash_at
from lorafleet_sidecar.neighbour import NeighbourCall

if TYPE_CHECKING:
    from lorafleet_sidecar.neighbour import Dialer
    from lorafleet_sidecar.transfer_settings import TransferSettings

log = logging.getLogger(__name__)

_WAITING = 2
"""Messages between this sidecar and the next: one is written while another is checked."""
_KEPT_BYTES = 16 << 20
"""Of the latest messages, for the neighbour behind one that failed: what may be under way in one
sidecar and its two connections."""
_TAKEN_BYTES_PER_SECOND = 100 << 20
"""The least that a neighbour that lives takes over of an earlier revision; all do it at once."""
_BUSY_SECONDS = 5.0
"""How long a neighbour may still be ending the stream of the one that failed."""
_BUSY_PAUSE_SECONDS = 0.05


class Forwarding:
    """Sends one transfer on to the neighbours that its manifest names, in their order.

    `open` first, then `put` each message, then `finish`; `close` always.
    """

    def __init__(
        self, manifest: pb.AdapterManifest, dialer: Dialer, settings: TransferSettings
    ) -> None:
        self.passed_bytes = 0  # of messages that a neighbour took
        self._left = list(manifest.forward_to)  # behind the one that is linked
        self._manifest = pb.AdapterManifest()
        self._manifest.CopyFrom(manifest)
        self._dialer = dialer
        self._settings = settings
        self._link: NeighbourCall | None = None
        self._lacks: set[int] = set()
        self._kept: deque[tuple[int, bytes]] = deque()
        self._kept_bytes = 0
        self._queue: asyncio.Queue[tuple[int, bytes] | None] = asyncio.Queue(_WAITING)
        self._sending: asyncio.Task[None] | None = None
        self._outcomes: dict[str, pb.ForwardOutcome] = {}

    async def open(self) -> frozenset[int]:
        """Link the first neighbour that takes the transfer; return what it and the rest lack."""
        await self._relink()
        self._sending = asyncio.create_task(self._send())
        return frozenset(self._lacks)

    async def put(self, index: int, message: bytes) -> None:
        """Pass on the message of chunk `index`; waits while the neighbour is slower."""
        await self._queue.put((index, message))

    async def finish(self) -> pb.ForwardReport:
        """Commit along the chain; return what came of each neighbour, as far as it is known."""
        assert self._sending is not None  # open() came before
        await self._queue.put(None)
        await self._sending
        return pb.ForwardReport(outcomes=self._outcomes.values())

    async def close(self) -> None:
        """End the call to the neighbour, which keeps what it has for a resume."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
        if self._link is not None:
            await self._link.close()

    async def _send(self) -> None:
        while (item := await self._queue.get()) is not None:
            if self._link is not None:
                await self._pass_on(*item)
        while self._link is not None:
            behind, outcome = await self._link.commit(self._settings.commit_seconds)
            for each in behind:
                self._outcomes[each.pod_uid] = each
            self._left = [each for each in self._left if each.pod_uid not in self._outcomes]
            if isinstance(outcome, pb.StagedRevision):
                self._note(self._link.pod_uid, outcome)
                return
            await self._give_up(outcome)

    async def _pass_on(self, index: int, message: bytes) -> None:
        assert self._link is not None
        self._keep(index, message)
        if index not in self._lacks:
            return
        try:
            await self._write(self._link, index, message)
        except LorafleetError as error:
            await self._give_up(error)  # the next one is sent this message too

    async def _write(self, link: NeighbourCall, index: int, message: bytes) -> None:
        await link.write(message)
        self._lacks.discard(index)
        self.passed_bytes += len(message)
        crash_at("forward.chunk")

    def _keep(self, index: int, message: bytes) -> None:
        self._kept.append((index, message))
        self._kept_bytes += len(message)
        while self._kept_bytes > _KEPT_BYTES and len(self._kept) > 1:
            self._kept_bytes -= len(self._kept.popleft()[1])

    async def _give_up(self, error: LorafleetError) -> None:
        """Leave the linked neighbour out, and link the next."""
        assert self._link is not None
        log.warning("%s: left out of the chain: %s", self._manifest.adapter, error)
        self._note(self._link.pod_uid, error)
        await self._link.close()
        self._link = None
        await self._relink()

    async def _relink(self) -> None:
        while self._left and self._link is None:
            neighbour = self._left.pop(0)
            try:
                await self._try(neighbour)
            except LorafleetError as error:
                self._note(neighbour.pod_uid, error)

    async def _try(self, neighbour: pb.Neighbour) -> None:
        """Link `neighbour`, if it has not got the content, and send what it lacks of the latest."""
        manifest = self._manifest
        manifest.pod_uid = neighbour.pod_uid
        del manifest.forward_to[:]
        manifest.forward_to.extend(self._left)
        link, answer = await self._opened(neighbour)
        try:
            if isinstance(answer, pb.StagedRevision):
                self._note(neighbour.pod_uid, answer)
                return
            self._lacks = set(answer.missing_chunks)
            for index, message in tuple(self._kept):
                if index in self._lacks:
                    await self._write(link, index, message)
            self._link = link
        finally:
            if self._link is not link:
                await link.close()

    async def _opened(
        self, neighbour: pb.Neighbour
    ) -> tuple[NeighbourCall, pb.StagingAccepted | pb.StagedRevision]:
        # The answer comes once those behind have answered, and any of them may be away.
        seconds = self._settings.dial_seconds * (len(self._left) + 1)
        if self._manifest.tensor_digests:  # each takes over what it has of them first
            seconds += self._manifest.data_bytes / _TAKEN_BYTES_PER_SECOND
        until = asyncio.get_running_loop().time() + _BUSY_SECONDS
        while True:
            link = NeighbourCall(self._dialer, neighbour, self._settings.forward_seconds)
            try:
                return link, await link.open(self._manifest, seconds)
            except StagingBusy:
                await link.close()
                if asyncio.get_running_loop().time() > until:
                    raise
            except BaseException:
                await link.close()
                raise
            await asyncio.sleep(_BUSY_PAUSE_SECONDS)

    def _note(self, pod_uid: str, outcome: pb.StagedRevision | LorafleetError) -> None:
        if isinstance(outcome, pb.StagedRevision):
            noted = pb.ForwardOutcome(pod_uid=pod_uid, committed=outcome)
        else:
            noted = pb.ForwardOutcome(pod_uid=pod_uid, reason=outcome.reason, message=str(outcome))
        self._outcomes[pod_uid] = noted
