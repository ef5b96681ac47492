"""Who calls is asked before a byte of the call's message is taken: anybody can knock."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio
from lorafleet.errors import AccessDenied, InvalidAdapter, LorafleetError, TransferInterrupted
from lorafleet.grpc_errors import abort, abort_unexpected

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lorafleet_operator.push.access import Doorkeeper
    from lorafleet_operator.push.turns import Turns

_MESSAGES: Final = 4
"""First messages at a time of those who have no place yet: the bound on what is in memory of them."""
_SECONDS: Final = 10.0
_MOST_BYTES: Final = 64 << 10
_TOO_LARGE: Final = object()


class Callers(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # the stubs know more
    """Has the doorkeeper ask whose token each call carries, counts a side's calls, tells failures."""

    def __init__(self, door: Doorkeeper, turns: Turns) -> None:
        self._door = door
        self._turns = turns
        self._messages = asyncio.Semaphore(_MESSAGES)

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        """Return the call's handler behind the question who calls."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None

        async def answer(requests: Any, context: Any) -> None:
            try:
                await self._let_in(handler, requests, context)
                return
            except LorafleetError as error:
                failure: Exception = _alone(error)
            except grpc.aio.AbortError:
                raise
            except Exception as error:
                failure = error
            if isinstance(failure, LorafleetError):
                await abort(context, failure)
            await abort_unexpected(context, failure)

        read = handler.request_deserializer
        # Also for what has one request: gRPC would have read that before anybody asks.
        return grpc.stream_stream_rpc_method_handler(
            answer,
            read if handler.request_streaming else partial(_small, read),
            handler.response_serializer,
        )

    async def _let_in(self, handler: Any, requests: Any, context: Any) -> None:
        try:
            who = await self._door.identify(dict(context.invocation_metadata()))
        except AccessDenied as error:
            await self._door.refused(dict(context.invocation_metadata()), error)
            raise
        async with self._turns.call(who.side):
            if handler.request_streaming:
                await handler.stream_stream(requests, context)
                return
            answers = handler.unary_stream(await self._first(context), context)
            async with aclosing(answers):
                async for each in answers:
                    await context.write(each)

    async def _first(self, context: Any) -> Any:
        """Return the first message."""
        try:
            async with asyncio.timeout(_SECONDS), self._messages:
                found = await context.read()
        except TimeoutError:
            raise TransferInterrupted(f"no request came in {_SECONDS:g} s") from None
        if found is grpc.aio.EOF:  # type: ignore[attr-defined]  # the stubs lack it
            raise TransferInterrupted("the call ended before its request")
        if found is _TOO_LARGE:
            raise InvalidAdapter(f"the request has more than {_MOST_BYTES} bytes")
        return found


def _small(read: Callable[[bytes], Any], content: bytes) -> Any:
    return read(content) if len(content) <= _MOST_BYTES else _TOO_LARGE


def _alone(error: LorafleetError) -> LorafleetError:
    """Return the error without the frames that it came through: they hold what the caller sent."""
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)
