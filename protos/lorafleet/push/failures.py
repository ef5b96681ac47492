"""What can go wrong for a trainer beyond lorafleet/errors.py, and how gRPC's failures become ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

from lorafleet.errors import (
    EngineError,
    EngineUnreachable,
    LorafleetError,
    StagingError,
    from_reason,
)
from lorafleet.grpc_errors import REASON_KEY

if TYPE_CHECKING:
    from collections.abc import Mapping


class OperatorUnreachable(EngineUnreachable):
    """Raised when no operator answers, or none of those that do acts for the adapter's pool."""


class Overtaken(StagingError):
    """Raised for a revision that a newer one took the place of before it was served or sent."""

    reason = "Overtaken"


class NotServed(EngineError, TimeoutError):
    """Raised when the engines that were waited for do not serve the revision in time."""


class OtherProcess(LorafleetError, RuntimeError):
    """Raised in a process that was forked from the one that uses the Fleet."""

    def __init__(self) -> None:
        super().__init__("this Fleet is in use in the process that was forked: make one here")


_AGAIN = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED, grpc.StatusCode.CANCELLED}


def from_call(error: grpc.RpcError, address: str) -> tuple[LorafleetError, bool]:
    """Return the error of a failed call, and whether another try can help."""
    call: Any = error
    code = call.code()
    details = " ".join((call.details() or code.name).split())
    metadata: Mapping[str, str] = dict(call.trailing_metadata() or ())
    reason = metadata.get(REASON_KEY)
    if reason == Overtaken.reason:
        return Overtaken(details), False
    if reason is not None:
        return from_reason(reason, details), code in _AGAIN
    if code in _AGAIN:
        return OperatorUnreachable(f"no operator answers at {address}: {details}"), True
    return LorafleetError(f"{address}: {code.name}: {details}"), False
