"""How errors of `lorafleet.errors` travel over gRPC: status code, one line, reason."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
import grpc.aio

from lorafleet import errors

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Context = grpc.aio.ServicerContext[Any, Any]
    Handler = Callable[[Any, Any, Context], Awaitable[Any]]

log = logging.getLogger(__name__)

REASON_KEY = "lorafleet-reason"
_MOST_BYTES = 2000
"""Of status and metadata 8 KiB go through, in which what is not ASCII takes thrice as many."""

STATUS: dict[type[errors.LorafleetError], grpc.StatusCode] = {
    errors.LorafleetError: grpc.StatusCode.INTERNAL,
    errors.AdapterRejected: grpc.StatusCode.INVALID_ARGUMENT,
    errors.StagingError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.StagingFull: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.TransferInterrupted: grpc.StatusCode.ABORTED,
    errors.StagingBusy: grpc.StatusCode.ABORTED,
    errors.EngineError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.EngineUnreachable: grpc.StatusCode.UNAVAILABLE,
    errors.NameTaken: grpc.StatusCode.ALREADY_EXISTS,
    errors.SourceError: grpc.StatusCode.UNAVAILABLE,
    errors.SourceNotFound: grpc.StatusCode.NOT_FOUND,
    errors.PathNotAllowed: grpc.StatusCode.INVALID_ARGUMENT,
    errors.AccessDenied: grpc.StatusCode.PERMISSION_DENIED,
}
"""Classes not named here have the status of the nearest class above them."""


def status_of(error: errors.LorafleetError) -> grpc.StatusCode:
    """Return the gRPC status of `error`."""
    for cls in type(error).__mro__:
        if cls in STATUS:
            return STATUS[cls]
    return grpc.StatusCode.INTERNAL


def cut(line: str) -> str:
    """Return a line as long as a status may be: gRPC drops the whole answer for a longer one."""
    text = line.encode(errors="replace")
    return line if len(text) <= _MOST_BYTES else f"{text[:_MOST_BYTES].decode(errors='ignore')} .."


async def abort(context: Context, error: errors.LorafleetError) -> NoReturn:
    """End the call with the error's status, its line, and its reason as trailing metadata."""
    await context.abort(status_of(error), cut(str(error)), ((REASON_KEY, error.reason),))
    raise AssertionError("abort returned")  # it never does; this tells mypy


async def abort_unexpected(context: Context, error: Exception) -> NoReturn:
    """End the call for a fault of our own: the log has the trace, the client one line."""
    log.error("unexpected failure", exc_info=error)
    line = " ".join(f"{type(error).__name__}: {error}".split())[:500]
    await abort(context, errors.LorafleetError(f"failed unexpectedly: {line}"))


def answers_errors(handler: Handler) -> Handler:
    """Turn errors of a unary method into a status, a line and a reason."""

    @functools.wraps(handler)
    async def answer(self: Any, request: Any, context: Context) -> Any:
        try:
            return await handler(self, request, context)
        except errors.LorafleetError as error:
            await abort(context, error)
        except Exception as error:
            await abort_unexpected(context, error)

    return answer
