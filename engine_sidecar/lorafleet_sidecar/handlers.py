"""A question that is asked before a gRPC method answers, whatever its kind."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

_KINDS = {
    (False, False): ("unary_unary", grpc.unary_unary_rpc_method_handler),
    (False, True): ("unary_stream", grpc.unary_stream_rpc_method_handler),
    (True, False): ("stream_unary", grpc.stream_unary_rpc_method_handler),
    (True, True): ("stream_stream", grpc.stream_stream_rpc_method_handler),
}


def checked(handler: Any, check: Callable[[Any], Awaitable[None]]) -> Any:
    """Return `handler` behind `check(context)`, which ends the call if it must not go on."""
    name, make = _KINDS[handler.request_streaming, handler.response_streaming]
    behaviour = getattr(handler, name)

    async def answer(request: Any, context: Any) -> Any:
        await check(context)
        return await behaviour(request, context)

    async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
        await check(context)
        async for each in behaviour(request, context):
            yield each

    generates = inspect.isasyncgenfunction(behaviour)
    return make(
        stream if generates else answer,
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )
