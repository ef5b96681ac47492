"""A small client of StageAdapter and SendChunks that a test can lead astray at every step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from lorafleet import frames
from lorafleet.grpc_streams import WrittenCall
from lorafleet.v1alpha1 import sidecar_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable

    from staging_builders import SourceAdapter

SERVICE = "/lorafleet.v1alpha1.SidecarService/"
OPTIONS = (("grpc.max_send_message_length", 17 << 20),)


class StageCall:
    """One StageAdapter stream."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        method = channel.stream_stream(
            SERVICE + "StageAdapter", response_deserializer=pb.StageAdapterResponse.FromString
        )
        self.call = WrittenCall(method())

    async def manifest(self, manifest: pb.AdapterManifest) -> pb.StageAdapterResponse:
        """Send a manifest; return `accepted` or `committed`."""
        await self.raw(frames.encode_manifest(manifest.SerializeToString()))
        return await self.answer()

    async def chunk(self, offset: int, crc32c: int, data: bytes) -> None:
        """Send one chunk."""
        await self.raw(frames.encode_chunk(offset, crc32c, data))

    async def commit(self) -> pb.StagedRevision:
        """Send the commit; return the committed revision."""
        await self.raw(frames.encode_commit())
        return (await self.answer()).committed

    async def raw(self, message: bytes) -> None:
        """Send any bytes as a message. Raises the call's own error if it is over."""
        await self.call.write(message)

    async def answer(self) -> pb.StageAdapterResponse:
        """Return the next response. Raises the call's error, AioRpcError, if there is none."""
        response = await self.call.read()
        if response is grpc.aio.EOF:
            raise await self.call.ended()
        found: pb.StageAdapterResponse = response
        return found


async def stage(
    channel: grpc.aio.Channel,
    adapter: SourceAdapter,
    chunk_bytes: int = 64 << 10,
    **changes: Any,
) -> tuple[pb.StagedRevision, list[int]]:
    """Stage `adapter` on one stream; return the revision and the chunks that were sent.

    `changes`: to fields of the manifest.
    """
    call = StageCall(channel)
    response = await call.manifest(adapter.manifest(chunk_bytes, **changes))
    if response.WhichOneof("message") == "committed":
        return response.committed, []
    missing = list(response.accepted.missing_chunks)
    cuts = adapter.cuts(chunk_bytes)
    for index in missing:
        await call.chunk(*adapter.chunk(*cuts[index]))
    return await call.commit(), missing


async def send_stripe(
    channel: grpc.aio.Channel, staging_id: str, chunks: Iterable[tuple[int, int, bytes]]
) -> int:
    """Send `chunks` on one SendChunks stream; return the bytes that the receiver counted."""
    method = channel.stream_unary(
        SERVICE + "SendChunks", response_deserializer=pb.SendChunksResponse.FromString
    )
    messages = [frames.encode_staging_id(staging_id)]
    messages += [frames.encode_chunk(*chunk, frames.SEND_CHUNK_FIELD) for chunk in chunks]
    response: pb.SendChunksResponse = await method(iter(messages))
    return response.received_bytes


def reason(error: grpc.aio.AioRpcError) -> str:
    """Return the `lorafleet-reason` of a failed call."""
    return dict(error.trailing_metadata() or ())["lorafleet-reason"]
