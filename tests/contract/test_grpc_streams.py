"""Why a peer ended a call that is being written to reaches the writer, whatever the moment."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import grpc.aio
import pytest
from lorafleet.errors import StagingFull
from lorafleet.grpc_errors import REASON_KEY, abort
from lorafleet.grpc_streams import WrittenCall

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CALLS = 100
MESSAGE = bytes(64 << 10)


@pytest.fixture
async def channel() -> AsyncIterator[grpc.aio.Channel]:
    """A peer that ends `/x/refuse` for a reason once it has a message, and `/x/take` well."""

    async def refuse(_: Any, context: Any) -> None:
        await context.read()
        await abort(context, StagingFull("no room"))

    async def take(_: Any, context: Any) -> None:
        await context.read()

    server = grpc.aio.server()
    handlers = {
        name: grpc.stream_stream_rpc_method_handler(method)
        for name, method in (("refuse", refuse), ("take", take))
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("x", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as made:
        yield made
    await server.stop(None)


async def flood(channel: grpc.aio.Channel, method: str) -> grpc.aio.AioRpcError:
    call = WrittenCall(channel.stream_stream(method)())

    async def without_end() -> None:
        while True:
            await call.write(MESSAGE)

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await without_end()
    with pytest.raises(grpc.aio.AioRpcError) as again:
        await call.write(MESSAGE)
    assert again.value.code() is caught.value.code()
    return caught.value


async def test_who_writes_when_the_peer_ends_the_call_learns_why(
    channel: grpc.aio.Channel,
) -> None:
    ends = [await flood(channel, "/x/refuse") for _ in range(CALLS)]
    ends += await asyncio.gather(*(flood(channel, "/x/refuse") for _ in range(CALLS)))
    said = Counter(
        (end.code(), end.details(), dict(end.trailing_metadata() or ()).get(REASON_KEY))
        for end in ends
    )
    assert said == {(grpc.StatusCode.RESOURCE_EXHAUSTED, "no room", "StagingFull"): 2 * CALLS}


async def test_who_writes_to_a_call_that_ended_well_learns_that(channel: grpc.aio.Channel) -> None:
    ends = [await flood(channel, "/x/take") for _ in range(CALLS)]
    assert Counter(end.code() for end in ends) == {grpc.StatusCode.OK: CALLS}


async def test_a_peer_that_is_gone_ends_the_call_as_silence_does() -> None:
    async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
        end = await flood(channel, "/x/refuse")
    assert end.code() is grpc.StatusCode.UNAVAILABLE
