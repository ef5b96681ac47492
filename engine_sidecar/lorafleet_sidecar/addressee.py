"""Refuses calls that were meant for another pod.

An address outlives its pod: the next pod that gets it must not take the orders of the one before,
not even in the moment before the caller has seen whose inventory it reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from lorafleet.errors import EngineUnreachable

from lorafleet_sidecar.grpc_errors import abort

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

POD_KEY = "lorafleet-pod-uid"
"""Metadata key of a call: the UID of the pod that it is meant for. Calls without it are for any."""


class Addressee(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # the stubs know more
    """Lets calls through that are for this pod, or for any."""

    def __init__(self, pod_uid: str) -> None:
        self._pod_uid = pod_uid

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        """Return the call's handler, or one that refuses in its place."""
        handler = await continuation(handler_call_details)
        meant = dict(handler_call_details.invocation_metadata or ()).get(POD_KEY)
        if handler is None or meant is None or meant == self._pod_uid:
            return handler
        uid = self._pod_uid or "(none)"
        return _refusal(handler, f"this sidecar is pod uid {uid}, the call is for {meant}")


def _refusal(handler: Any, line: str) -> Any:
    async def one(_: Any, context: Any) -> None:
        await abort(context, EngineUnreachable(line))

    async def several(_: Any, context: Any) -> AsyncIterator[None]:
        await abort(context, EngineUnreachable(line))
        yield

    kinds = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }
    make = kinds[handler.request_streaming, handler.response_streaming]
    return make(
        several if handler.response_streaming else one,
        handler.request_deserializer,
        handler.response_serializer,
    )
