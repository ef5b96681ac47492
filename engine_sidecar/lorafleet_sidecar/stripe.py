"""SendChunks: one stripe of a transfer that StageAdapter accepted, in whichever process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from lorafleet import grpc_errors
from lorafleet.errors import LorafleetError, TransferInterrupted
from lorafleet.frames import ChunkFrame, StagingIdFrame, decode_send_request
from lorafleet.v1alpha1 import sidecar_pb2 as pb

from lorafleet_sidecar.chunk_writer import ChunkWriter
from lorafleet_sidecar.incoming import Incoming
from lorafleet_sidecar.staging_dir import StagingDirectory

if TYPE_CHECKING:
    from concurrent.futures import Executor
    from pathlib import Path

    from lorafleet_sidecar.arena import Arena
    from lorafleet_sidecar.staging_plan import StagingPlan


class Stripes:
    """Serves the SendChunks streams of one process."""

    def __init__(self, volume: Path, arena: Arena, threads: Executor, stall_seconds: float) -> None:
        self._volume = volume
        self._arena = arena
        self._threads = threads
        self._stall_seconds = stall_seconds
        self._last_plan: tuple[str, StagingPlan] | None = None

    async def serve(self, context: Any) -> pb.SendChunksResponse:
        """Take the chunks of one stream of serialised messages until its end."""
        incoming = Incoming(context, self._stall_seconds)
        try:
            return pb.SendChunksResponse(received_bytes=await self._receive(incoming))
        except LorafleetError as error:
            await grpc_errors.abort(context, error)
        except Exception as error:  # the client gets a line, the log the trace
            await grpc_errors.abort_unexpected(context, error)
        finally:
            incoming.close()

    async def _receive(self, incoming: Incoming) -> int:
        raw = await incoming.next_or_end()
        first = decode_send_request(raw or b"")
        if not isinstance(first, StagingIdFrame):
            raise TransferInterrupted("the first message of a stripe must be its staging id")
        loop = asyncio.get_running_loop()
        opening = loop.run_in_executor(self._threads, self._open, first.staging_id)
        try:
            writer = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unused)  # the thread goes on
            raise
        received = 0
        write: asyncio.Future[int] | None = None
        try:
            while (raw := await incoming.next_or_end()) is not None:
                frame = decode_send_request(raw)
                if not isinstance(frame, ChunkFrame):
                    raise TransferInterrupted("a stripe has one staging id, a second one came")
                write = loop.run_in_executor(self._threads, writer.write, frame)
                received += await asyncio.shield(write)
        finally:
            if write is not None and not write.done():  # cancelled: the thread goes on
                write.add_done_callback(lambda _: writer.close())
            else:
                writer.close()
        return received

    def _open(self, staging_id: str) -> ChunkWriter:
        directory = StagingDirectory.find(self._volume, staging_id)
        known = self._last_plan
        if known is None or known[0] != staging_id:
            known = self._last_plan = (staging_id, directory.plan())
        return ChunkWriter(directory, known[1], self._arena)


def _close_unused(opening: asyncio.Future[ChunkWriter]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
