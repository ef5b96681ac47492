"""/healthz and /metrics over plain HTTP, and the pulse that keeps a quiet operator alive.

The age that /healthz judges counts from the last event or list. A pass is no proof: one that
changes nothing ends well without an API server. In a quiet cluster no event comes for long, so a
pulse lists one adapter when it has been silent: an operator whose API server does not answer, or
whose event loop hangs, still fails.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING, Final, Self

from lorafleet.plain_http import Answer, PlainHttp
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from lorafleet_operator.cluster import reads
from lorafleet_operator.metrics import ADAPTERS, REGISTRY

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from lorafleet_operator.fleet import Fleet

_LOG: Final = logging.getLogger(__name__)


class Probes:
    """The HTTP server and the pulse."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._pulse: asyncio.Task[None] | None = None
        self._http: PlainHttp | None = None

    @classmethod
    async def start(cls, fleet: Fleet) -> Self:
        """Serve at `settings.listen`; nothing is served if that is empty. Raises OSError."""
        probes = cls(fleet)
        if fleet.settings.listen:
            host, _, port = fleet.settings.listen.rpartition(":")
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listener = socket.create_server((host.strip("[]"), int(port)), family=family)
            probes._http = PlainHttp(listener, probes._answer)
            await probes._http.start()
        probes._pulse = asyncio.create_task(probes._beat())
        return probes

    async def stop(self) -> None:
        """Stop serving."""
        if self._pulse is not None:
            self._pulse.cancel()
            await asyncio.gather(self._pulse, return_exceptions=True)
        if self._http is not None:
            await self._http.close()

    def age(self) -> float:
        """Return the seconds since the last proof of life."""
        return asyncio.get_running_loop().time() - self._fleet.alive_at

    async def _beat(self) -> None:
        limit = self._fleet.settings.liveness_seconds
        while True:
            await asyncio.sleep(limit / 5)
            if self.age() > limit / 3:
                try:
                    async with asyncio.timeout(limit / 5):
                        await reads.first_adapter(self._fleet.api, self._fleet.settings.namespaces)
                except Exception as error:
                    _LOG.warning("the API server gives no list: %s", error)
                else:
                    self._fleet.alive()

    async def _answer(self, path: str, query: Mapping[str, list[str]]) -> Answer:
        if path == "/healthz":
            return self._healthz()
        if path != "/metrics":
            return Answer(404, b"not found\n")
        # All series, or as Prometheus' own servers do those that `name[]` names.
        if names := query.get("name[]"):
            body = generate_latest(REGISTRY.restricted_registry(names))
            return Answer(200, body, CONTENT_TYPE_LATEST)
        return Answer(200, self._series(), CONTENT_TYPE_LATEST)

    def _healthz(self) -> Answer:
        age, limit = self.age(), self._fleet.settings.liveness_seconds
        text = f"last proof of life {age:.0f} s ago, limit {limit:.0f} s\n"
        if self._fleet.tenure is not None:
            text += f"{self._fleet.tenure}\n"
        return Answer(200 if age < limit else 503, text.encode())

    async def _series(self) -> AsyncIterator[bytes]:
        """Yield the text piece by piece: the whole about ten thousand adapters is thirty megabytes."""
        yield generate_latest(REGISTRY)
        for piece in ADAPTERS.text():
            yield piece.encode()
            await asyncio.sleep(0)  # passes go on meanwhile
