"""/healthz and /metrics over plain HTTP, and the pulse that keeps a quiet operator alive.

The age that /healthz judges counts from the last event or list. A pass is no proof: one that
changes nothing ends well without an API server. In a quiet cluster no event comes for long, so a
pulse lists one adapter when it has been silent: an operator whose API server does not answer, or
whose event loop hangs, still fails.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Self

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from lorafleet_operator.cluster import reads
from lorafleet_operator.metrics import ADAPTERS, REGISTRY

if TYPE_CHECKING:
    from lorafleet_operator.fleet import Fleet

_TEXT: Final = {"Content-Type": CONTENT_TYPE_LATEST}
_LOG: Final = logging.getLogger(__name__)


class Probes:
    """The HTTP server and the pulse."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._pulse: asyncio.Task[None] | None = None
        app = web.Application()
        app.add_routes([web.get("/healthz", self._healthz), web.get("/metrics", self._metrics)])
        self._runner = web.AppRunner(app, handle_signals=False, access_log=None)

    @classmethod
    async def start(cls, fleet: Fleet) -> Self:
        """Serve at `settings.listen`; nothing is served if that is empty. Raises OSError."""
        probes = cls(fleet)
        if fleet.settings.listen:
            host, _, port = fleet.settings.listen.rpartition(":")
            await probes._runner.setup()
            await web.TCPSite(probes._runner, host.strip("[]"), int(port)).start()
        probes._pulse = asyncio.create_task(probes._beat())
        return probes

    async def stop(self) -> None:
        """Stop serving."""
        if self._pulse is not None:
            self._pulse.cancel()
            await asyncio.gather(self._pulse, return_exceptions=True)
        await self._runner.cleanup()

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

    async def _healthz(self, _: web.Request) -> web.Response:
        age, limit = self.age(), self._fleet.settings.liveness_seconds
        text = f"last proof of life {age:.0f} s ago, limit {limit:.0f} s\n"
        if self._fleet.tenure is not None:
            text += f"{self._fleet.tenure}\n"
        return web.Response(text=text, status=200 if age < limit else 503)

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        """Answer with all series, or as Prometheus' own servers do with those that `name[]` names."""
        if names := request.query.getall("name[]", []):
            body = generate_latest(REGISTRY.restricted_registry(names))
            return web.Response(body=body, headers=_TEXT)
        # Piece by piece: the whole text about ten thousand adapters is thirty megabytes.
        response = web.StreamResponse(headers=_TEXT)
        await response.prepare(request)
        await response.write(generate_latest(REGISTRY))
        for piece in ADAPTERS.text():
            await response.write(piece.encode())
            await asyncio.sleep(0)  # passes go on meanwhile
        await response.write_eof()
        return response
