"""How requests ended, by the revision that answered them.

Counted where every way out comes together, whatever vLLM does in between: around the API server's
whole application. A request belongs to the revisions that were looked up while it was answered.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from lorafleet_vllm.served_names import ServedNames

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    App = Callable[[Message, Receive, Send], Awaitable[None]]

PROBE_HEADER = b"x-lorafleet-probe"
"""Requests of the sidecar have it: they say nothing of clients."""
_STREAMED_ERROR = b'data: {"error"'


@dataclass
class Outcome:
    """Requests of one revision that have ended: all that were not the client's fault."""

    requests: int = 0
    errors: int = 0


@dataclass(eq=False)
class Request:
    """One HTTP request, and which revisions it has looked up so far."""

    counts: bool = True
    users: list[tuple[ServedNames, int]] = field(default_factory=list)
    asked: dict[int, str] = field(default_factory=dict)  # by which name each was looked up
    status: int = 0
    failed: bool = False

    def note(self, message: Message) -> None:
        """Learn from what is sent to the client."""
        if message["type"] == "http.response.start":
            self.status = int(message["status"])
        elif bytes(message.get("body", b"")[: len(_STREAMED_ERROR)]) == _STREAMED_ERROR:
            self.failed = True

    def end(self) -> None:
        """Let go of the revisions; a client's own mistakes and departures count for nothing."""
        failed = self.failed or self.status >= 500
        answered = failed or 200 <= self.status < 400
        for names, lora_int_id in self.users:
            names.release(lora_int_id, self, failed=failed, counts=self.counts and answered)


current: ContextVar[Request | None] = ContextVar("lorafleet_request", default=None)
"""The request that is being answered; tasks that are started for it inherit it."""


def counting(app: App) -> App:
    """Return the ASGI application `app` with its requests counted."""

    async def counted(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        probe = any(name.lower() == PROBE_HEADER for name, _ in scope.get("headers") or ())
        request = Request(counts=not probe)

        async def noting(message: Message) -> None:
            request.note(message)
            await send(message)

        token = current.set(request)
        try:
            await app(scope, receive, noting)
        except Exception:
            request.failed = True
            raise
        finally:
            current.reset(token)
            request.end()

    return counted
