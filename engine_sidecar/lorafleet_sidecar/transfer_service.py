"""The methods of the sidecar's service that move tensors: StageAdapter, SendChunks, SendAdapter.

The streaming ones take the serialised messages as gRPC delivers them (`lorafleet.frames` reads them in
place), so that a chunk is copied once between gRPC's buffer and the arena.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from lorafleet import grpc_errors
from lorafleet.errors import LorafleetError, TransferInterrupted
from lorafleet.frames import (
    ChunkFrame,
    CommitFrame,
    ManifestFrame,
    decode_stage_request,
)
from lorafleet.v1alpha1 import sidecar_pb2 as pb

from lorafleet_sidecar.forwarding import Forwarding
from lorafleet_sidecar.incoming import Incoming
from lorafleet_sidecar.lending import Lender
from lorafleet_sidecar.neighbour import Dialer
from lorafleet_sidecar.receivers import ReceiverPool
from lorafleet_sidecar.staging import ActiveStaging, Stagings
from lorafleet_sidecar.stripe import Stripes
from lorafleet_sidecar.transfer_settings import SERVER_OPTIONS, SERVICE, TransferSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from lorafleet.profile import EngineProfile

    from lorafleet_sidecar.store import RevisionStore, StagedRevisionInfo

__all__ = ["SERVER_OPTIONS", "TransferService", "TransferSettings", "add_transfer_service"]


class TransferService:
    """What moves tensors to and from one sidecar, and the receiver processes it owns."""

    def __init__(
        self,
        store: RevisionStore,
        profile_source: Callable[[], EngineProfile],
        settings: TransferSettings,
    ) -> None:
        self.stagings = Stagings(
            store, ttl_seconds=settings.resume_seconds, pod_uid=settings.pod_uid
        )
        self._passed_bytes = 0  # in transfers that came by
        self.receivers = ReceiverPool(store.volume, settings)
        self._profile_source = profile_source
        self._settings = settings
        self._dialer = Dialer(settings.certificates, settings.peer_name)
        self._lender = Lender(self.stagings, self._dialer, settings)
        self._stripes = Stripes(
            store.volume, store.arena, self.stagings.threads, settings.stall_seconds
        )

    @property
    def received_bytes(self) -> int:
        """Payload bytes that this sidecar and its receivers took since the start."""
        return self.stagings.received_bytes

    @property
    def reused_bytes(self) -> int:
        """Payload bytes that an earlier revision had, so that nobody sent them."""
        return self.stagings.reused_bytes

    @property
    def forwarded_bytes(self) -> int:
        """Bytes of the messages that neighbours took from this sidecar since the start."""
        return self._passed_bytes + self._lender.sent_bytes

    async def start(self) -> None:
        """Start the receiver processes."""
        await self.receivers.start()

    async def close(self) -> None:
        """End the receiver processes and the worker threads; call it after the server's stop."""
        await self.receivers.close()
        await self.stagings.close()

    async def stage_adapter(self, requests: Any, context: Any) -> None:
        """Serve one StageAdapter stream of serialised messages."""
        incoming = Incoming(context, self._settings.stall_seconds)
        try:
            await self._stage(incoming, context)
        except LorafleetError as error:
            await grpc_errors.abort(context, error)
        except Exception as error:  # the client gets a line, the log the trace
            await grpc_errors.abort_unexpected(context, error)
        finally:
            incoming.close()

    async def send_chunks(self, requests: Any, context: Any) -> pb.SendChunksResponse:
        """Serve one stripe in this process (receivers serve theirs in their own)."""
        return await self._stripes.serve(context)

    @grpc_errors.answers_errors
    async def send_adapter(
        self, request: pb.SendAdapterRequest, context: Any
    ) -> pb.SendAdapterResponse:
        """Fill neighbours with a revision that is staged here; see Lender.send."""
        return pb.SendAdapterResponse(report=await self._lender.send(request))

    async def _stage(self, incoming: Incoming, context: Any) -> None:
        first = decode_stage_request(await incoming.next())
        if not isinstance(first, ManifestFrame):
            raise TransferInterrupted("the first message of a transfer must be its manifest")
        outcome = await self.stagings.begin(first.raw, self._profile_source(), incoming)
        if not isinstance(outcome, ActiveStaging):
            await context.write(_committed(outcome))
            return
        try:
            if outcome.plan.manifest.forward_to and self._dialer.may_dial:
                revision = await self._pass_along(outcome, incoming, context)
            else:
                await outcome.open()
                await context.write(_accepted(outcome, outcome.missing(), self.receivers.ports()))
                revision = await self._receive(outcome, incoming)
        finally:
            await outcome.end()
        await context.write(_committed(revision))

    async def _receive(self, staging: ActiveStaging, incoming: Incoming) -> StagedRevisionInfo:
        async for _, chunk in _chunks(staging, incoming):
            await staging.write(chunk)
        return await staging.commit()

    async def _pass_along(
        self, staging: ActiveStaging, incoming: Incoming, context: Any
    ) -> StagedRevisionInfo:
        """Receive on this one stream, and send each chunk on to the neighbours."""
        forwarding = Forwarding(staging.plan.manifest, self._dialer, self._settings)
        try:
            # At once: each of a chain may have gigabytes to take over.
            opened, behind = await asyncio.gather(
                staging.open(), forwarding.open(), return_exceptions=True
            )
            if isinstance(opened, BaseException):
                raise opened
            if isinstance(behind, BaseException):
                raise behind
            own = frozenset(staging.missing())
            await context.write(_accepted(staging, sorted(own | behind), ()))
            async for message, chunk in _chunks(staging, incoming):
                index = staging.index_of(chunk)
                if index in own or index not in behind:  # one that nobody lacks is refused
                    await staging.write(chunk)
                else:
                    await staging.check(chunk)
                await forwarding.put(index, message)
            revision, report = await asyncio.gather(
                staging.commit(), forwarding.finish(), return_exceptions=True
            )
            if isinstance(report, BaseException):
                raise report
            await context.write(pb.StageAdapterResponse(forwarded=report))
            if isinstance(revision, BaseException):
                raise revision
            return revision
        finally:
            self._passed_bytes += forwarding.passed_bytes
            await forwarding.close()


async def _chunks(
    staging: ActiveStaging, incoming: Incoming
) -> AsyncIterator[tuple[bytes, ChunkFrame]]:
    """Yield each chunk with the message that it came in, until the commit."""
    while True:
        message = await incoming.next(staging.received_count)
        frame = decode_stage_request(message)
        if isinstance(frame, CommitFrame):
            return
        if not isinstance(frame, ChunkFrame):
            raise TransferInterrupted("a transfer has one manifest, a second one came")
        yield message, frame


async def add_transfer_service(
    server: grpc.aio.Server,
    store: RevisionStore,
    profile_source: Callable[[], EngineProfile],
    settings: TransferSettings | None = None,
) -> TransferService:
    """Register the methods on `server` (before its start) and start the receivers.

    `profile_source` gives the engine's current profile or raises a LorafleetError (its reason
    travels to the client). Call this AFTER `add_SidecarServiceServicer_to_server`: of two
    handlers for a method gRPC takes the one registered last. Pass `SERVER_OPTIONS` to the
    server. Call `close` of the result after the server has stopped.
    """
    service = TransferService(store, profile_source, settings or TransferSettings())
    handlers = {
        "StageAdapter": grpc.stream_stream_rpc_method_handler(
            service.stage_adapter,
            response_serializer=pb.StageAdapterResponse.SerializeToString,
        ),
        "SendChunks": grpc.stream_unary_rpc_method_handler(
            service.send_chunks,
            response_serializer=pb.SendChunksResponse.SerializeToString,
        ),
        "SendAdapter": grpc.unary_unary_rpc_method_handler(
            service.send_adapter,
            request_deserializer=pb.SendAdapterRequest.FromString,
            response_serializer=pb.SendAdapterResponse.SerializeToString,
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    server.add_registered_method_handlers(SERVICE, handlers)  # type: ignore[attr-defined]  # stubs
    await service.start()
    return service


def _accepted(
    staging: ActiveStaging, missing: Sequence[int], ports: Sequence[int]
) -> pb.StageAdapterResponse:
    return pb.StageAdapterResponse(
        accepted=pb.StagingAccepted(
            staging_id=staging.staging_id, missing_chunks=missing, receiver_ports=ports
        )
    )


def _committed(info: StagedRevisionInfo) -> pb.StageAdapterResponse:
    return pb.StageAdapterResponse(
        committed=pb.StagedRevision(
            digest=info.digest,
            fingerprint=info.fingerprint,
            size_bytes=info.size_bytes,
            rank=info.rank,
            adapter=info.adapter,
            notes=info.notes,
            in_use=info.in_use,
        )
    )
