"""Calls of grpc.aio that messages are written to, with the end that the peer gave them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import grpc
import grpc.aio

if TYPE_CHECKING:
    from collections.abc import Coroutine

_OVER: Final = (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError)
"""What the library raises for a call that has ended."""
_LOOKS: Final = 100
_PAUSE_SECONDS: Final = 0.01


class WrittenCall:
    """A call that messages are written to; what ends it is an AioRpcError with what the peer said.

    When a peer ends a call that is being written to, the library has a status of its own for the
    write that fails. It takes the place of the peer's, or the peer's comes a moment later:
    https://github.com/grpc/grpc/issues/36066. A caller would learn only that something broke.
    The peer's comes behind its answers, so those are to be read before more is written.
    """

    def __init__(self, call: Any) -> None:
        self._call = call
        self._end = _End(grpc.StatusCode.UNKNOWN, "", None, None)
        call.add_done_callback(self._note)  # runs before anything can replace the first status

    async def write(self, message: Any) -> None:
        """Send a message; waits while the peer is slower. Raises AioRpcError, also for a good end."""
        try:
            await self._call.write(message)
        except _OVER:
            raise await self.ended() from None

    async def read(self) -> Any:
        """Return the next answer, or grpc.aio.EOF after a good end. Raises AioRpcError."""
        try:
            return await self._call.read()
        except _OVER:
            raise await self.ended() from None

    async def finish(self) -> None:
        """Say that nothing follows and wait for the end. Raises AioRpcError unless it is good."""
        try:
            await self._call.done_writing()
        except _OVER:
            raise await self.ended() from None
        end = await self.ended()
        if end.code() is not grpc.StatusCode.OK:
            raise end

    async def ended(self) -> grpc.aio.AioRpcError:
        """Return how the call has ended, good or bad, once it has."""
        await self._call.code()
        for _ in range(_LOOKS):
            if not self._end.of_the_library:
                break
            await asyncio.sleep(_PAUSE_SECONDS)  # nothing tells when the peer's has come
            self._note(self._call)
        end = self._end
        return grpc.aio.AioRpcError(end.code, end.first, end.last, end.details, "")

    def cancel(self) -> None:
        """End the call now, whatever its state."""
        self._call.cancel()

    def _note(self, call: Any) -> None:
        self._end = _at_once(_end_of(call))


class _End(NamedTuple):
    code: grpc.StatusCode
    details: str
    first: Any
    last: Any

    @property
    def of_the_library(self) -> bool:
        """Whether it may be what the library makes of a write that failed."""
        return self.code is grpc.StatusCode.INTERNAL and not self.last


async def _end_of(call: Any) -> _End:
    return _End(
        await call.code(),
        await call.details() or "",
        await call.initial_metadata(),
        await call.trailing_metadata(),
    )


def _at_once(answer: Coroutine[Any, Any, _End]) -> _End:
    """Return what comes of questions to a call that is over: they wait for nothing."""
    try:
        answer.send(None)
    except StopIteration as found:
        end: _End = found.value
        return end
    finally:
        answer.close()
    raise AssertionError("the call is not over")
