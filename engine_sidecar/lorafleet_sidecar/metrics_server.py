"""Plain HTTP for Prometheus and the kubelet: /metrics, /healthz, /readyz.

It runs in a thread of its own, so that scrapers never hold up a transfer.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import TYPE_CHECKING

from lorafleet.plain_http import Answer, PlainHttp
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from prometheus_client.registry import Collector

    from lorafleet_sidecar.agent import Agent


class MetricsServer:
    """Serves one collector; `port` is the one that was really bound."""

    def __init__(self, listen: str, collector: Collector, agent: Agent) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(collector)
        self._agent = agent
        host, _, port = listen.rpartition(":")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host.strip("[]"), int(port)), family=family)
        self.port: int = listener.getsockname()[1]
        self._http = PlainHttp(listener, self._answer)
        self._scraping = asyncio.Lock()
        self._scraped = (0.0, b"")  # when it was begun, the text
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def start(self) -> None:
        """Serve from a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop serving and free the port."""
        asyncio.run_coroutine_threadsafe(self._http.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._http.start())
            self._loop.run_forever()

    async def _answer(self, path: str, query: Mapping[str, list[str]]) -> Answer:
        if path == "/metrics":
            return Answer(200, await self._scrape(), CONTENT_TYPE_LATEST)
        if path == "/healthz":
            return Answer(200, b"ok\n")
        if path == "/readyz":
            # Ready means: an engine was looked at. Whether that engine can take adapters is the
            # operator's question, answered by the inventory.
            inventory = self._agent.board.current
            state = pb.EngineHealth.Name(inventory.health).removeprefix("ENGINE_HEALTH_").lower()
            line = f"engine {state} {inventory.health_message}".strip()
            return Answer(200, f"{line}\n".encode())
        return Answer(404, b"not found\n")

    async def _scrape(self) -> bytes:
        """Return what is read after this was asked; all who wait meanwhile get the same text."""
        asked = self._loop.time()
        async with self._scraping:
            if self._scraped[0] < asked:
                begun = self._loop.time()
                text = await asyncio.to_thread(generate_latest, self._registry)
                self._scraped = (begun, text)
            return self._scraped[1]
