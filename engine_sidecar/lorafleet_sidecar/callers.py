"""Who may call what: a certificate of the fleet's authority alone orders nothing.

The operator may do everything. A sidecar of the same pool may pass an adapter on, and ask whether
this one lives. All others, engines of other pools among them, are refused. A connection that
outlives its certificate can begin no further call.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio
from lorafleet.certificates import expires_at
from lorafleet.grpc_errors import REASON_KEY

from lorafleet_sidecar.handlers import checked
from lorafleet_sidecar.transfer_settings import HEALTH, SERVICE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_OF_PEERS: Final = (f"/{SERVICE}/StageAdapter", HEALTH)
_MOST_REMEMBERED: Final = 256


class Callers(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # the stubs know more
    """Lets each caller do what the names in its certificate allow."""

    def __init__(self, operator_name: str, peer_name: str) -> None:
        self._operator_name = operator_name
        self._peer_name = peer_name
        self._expiries: dict[bytes, float] = {}

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        """Return the call's handler behind the question who asks."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method: str = handler_call_details.method

        async def check(context: Any) -> None:
            problem = self.problem(method, context.auth_context())
            if problem:
                reason = ((REASON_KEY, "EngineUnreachable"),)
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, problem, reason)

        return checked(handler, check)

    def problem(self, method: str, caller: dict[str, list[bytes]]) -> str:
        """Return why the caller may not do this, empty if it may."""
        names = [name.decode() for name in caller.get("peer_dns") or ()]
        if self._operator_name not in names and not (
            method in _OF_PEERS and self._peer_name and self._peer_name in names
        ):
            verb = method.rpartition("/")[2]
            allowed = self._operator_name
            if method in _OF_PEERS and self._peer_name:
                allowed += f" and {self._peer_name}"
            return f"{verb} is for {allowed}, the caller's certificate names {', '.join(names) or 'nobody'}"
        [certificate] = caller.get("x509_pem_cert") or (b"",)
        if self._expiry(certificate) <= time.time():
            return "the caller's certificate has expired since the connection was made"
        return ""

    def _expiry(self, certificate: bytes) -> float:
        if certificate not in self._expiries:
            if len(self._expiries) >= _MOST_REMEMBERED:
                self._expiries.clear()
            self._expiries[certificate] = expires_at(certificate)
        return self._expiries[certificate]
