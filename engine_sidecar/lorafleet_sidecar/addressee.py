"""Refuses calls that were meant for another pod.

An address outlives its pod: the next pod that gets it must not take the orders of the one before,
not even in the moment before the caller has seen whose inventory it reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio
from lorafleet.errors import EngineUnreachable
from lorafleet.grpc_errors import abort

from lorafleet_sidecar.handlers import checked
from lorafleet_sidecar.transfer_settings import SERVICE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

POD_KEY = "lorafleet-pod-uid"
"""Metadata key of a call: the UID of the pod that it is meant for."""
ORDERS: Final = frozenset(
    f"/{SERVICE}/{name}"
    for name in ("LoadAdapter", "UnloadAdapter", "RestartEngine", "RefuseNames", "SendAdapter")
)
"""What changes an engine. (A StageAdapter of a neighbour names the pod in its manifest.)"""


class Addressee(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # the stubs know more
    """Lets calls through that are for this pod, or for any; with `strict`, orders for this pod alone."""

    def __init__(self, pod_uid: str, *, strict: bool = False) -> None:
        self._pod_uid = pod_uid
        self._strict = strict and bool(pod_uid)

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        """Return the call's handler, or one that refuses in its place."""
        handler = await continuation(handler_call_details)
        meant = dict(handler_call_details.invocation_metadata or ()).get(POD_KEY)
        unsaid = meant is None and not (self._strict and handler_call_details.method in ORDERS)
        if handler is None or unsaid or meant == self._pod_uid:
            return handler
        uid = self._pod_uid or "(none)"
        whom = meant or f"nobody (metadata {POD_KEY} is missing)"

        async def refuse(context: Any) -> None:
            await abort(
                context, EngineUnreachable(f"this sidecar is pod uid {uid}, the call is for {whom}")
            )

        return checked(handler, refuse)
