"""Bounds on the control socket's connections: uvicorn waits for ever for the rest of a request.

Who may open the socket may keep it busy; vLLM's API server, whose event loop and files these are,
must not notice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

MOST_CONNECTIONS: Final = 64
REQUEST_SECONDS: Final = 5.0
"""For all of a request's bytes, and for the first one of a connection."""

_waiting: dict[BoundedConnection, None] = {}  # nothing is answered on them, the longest first
_answering: set[BoundedConnection] = set()


class BoundedConnection(H11Protocol):  # type: ignore[misc]  # uvicorn is untyped here
    """One connection. h11 itself bounds the head of a request to 64 KiB."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Take the connection, in the place of the one that has been silent longest if need be."""
        super().connection_made(transport)
        if len(_waiting) + len(_answering) >= MOST_CONNECTIONS:
            next(iter(_waiting), self).transport.abort()
        self._look()

    def data_received(self, data: bytes) -> None:
        """Take bytes of a request."""
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """Wait for the next request; uvicorn ends connections that bring none."""
        super().on_response_complete()
        if self.cycle.response_complete:  # else a request that was there already is answered now
            _answering.discard(self)
            _waiting[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        self._stop_clock()
        _waiting.pop(self, None)
        _answering.discard(self)

    def _look(self) -> None:
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            self._stop_clock()
            _waiting.pop(self, None)
            _answering.add(self)
        elif self._deadline is None and not self.transport.is_closing():
            _waiting[self] = None
            self._deadline = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
