"""The two streaming methods of the sidecar's service: StageAdapter and SendChunks.

They take the serialised messages as gRPC delivers them (`lorafleet.frames` reads them in
place), so that a chunk is copied once between gRPC's buffer and the arena.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from lorafleet.errors import LorafleetError, TransferInterrupted
from lorafleet.frames import (
    ChunkFrame,
    CommitFrame,
    ManifestFrame,
    decode_stage_request,
)
from lorafleet.v1alpha1 import sidecar_pb2 as pb

from lorafleet_sidecar import grpc_errors
from lorafleet_sidecar.incoming import Incoming
from lorafleet_sidecar.receivers import ReceiverPool
from lorafleet_sidecar.staging import ActiveStaging, Stagings
from lorafleet_sidecar.stripe import Stripes
from lorafleet_sidecar.transfer_settings import MESSAGE_OPTIONS, SERVICE, TransferSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from lorafleet.profile import EngineProfile

    from lorafleet_sidecar.store import RevisionStore, StagedRevisionInfo

__all__ = ["MESSAGE_OPTIONS", "TransferService", "TransferSettings", "add_transfer_service"]


class TransferService:
    """StageAdapter and SendChunks of one sidecar, and the receiver processes it owns."""

    def __init__(
        self,
        store: RevisionStore,
        profile_source: Callable[[], EngineProfile],
        settings: TransferSettings,
    ) -> None:
        self.stagings = Stagings(store, ttl_seconds=settings.resume_seconds)
        self.receivers = ReceiverPool(store.volume, settings)
        self._profile_source = profile_source
        self._settings = settings
        self._stripes = Stripes(
            store.volume, store.arena, self.stagings.threads, settings.stall_seconds
        )

    @property
    def received_bytes(self) -> int:
        """Payload bytes that this sidecar and its receivers took since the start."""
        return self.stagings.received_bytes

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

    async def _stage(self, incoming: Incoming, context: Any) -> None:
        first = decode_stage_request(await incoming.next())
        if not isinstance(first, ManifestFrame):
            raise TransferInterrupted("the first message of a transfer must be its manifest")
        outcome = await self.stagings.begin(first.raw, self._profile_source())
        if not isinstance(outcome, ActiveStaging):
            await context.write(_committed(outcome))
            return
        try:
            await outcome.open()
            await context.write(
                pb.StageAdapterResponse(
                    accepted=pb.StagingAccepted(
                        staging_id=outcome.staging_id,
                        missing_chunks=outcome.missing(),
                        receiver_ports=self.receivers.ports(),
                    )
                )
            )
            revision = await self._receive(outcome, incoming)
        finally:
            await outcome.end()
        await context.write(_committed(revision))

    async def _receive(self, staging: ActiveStaging, incoming: Incoming) -> StagedRevisionInfo:
        while True:
            frame = decode_stage_request(await incoming.next(staging.received_count))
            if isinstance(frame, ChunkFrame):
                await staging.write(frame)
            elif isinstance(frame, CommitFrame):
                return await staging.commit()
            else:
                raise TransferInterrupted("a transfer has one manifest, a second one came")


async def add_transfer_service(
    server: grpc.aio.Server,
    store: RevisionStore,
    profile_source: Callable[[], EngineProfile],
    settings: TransferSettings | None = None,
) -> TransferService:
    """Register both methods on `server` (before its start) and start the receivers.

    `profile_source` gives the engine's current profile or raises a LorafleetError (its reason
    travels to the client). Call this AFTER `add_SidecarServiceServicer_to_server`: of two
    handlers for a method gRPC takes the one registered last. Pass `MESSAGE_OPTIONS` to the
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
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    server.add_registered_method_handlers(SERVICE, handlers)  # type: ignore[attr-defined]  # stubs
    await service.start()
    return service


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
