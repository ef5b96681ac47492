"""Plain HTTP for Prometheus and the kubelet: /metrics, /healthz, /readyz.

It runs in threads of its own, so that a slow scraper never holds up a transfer.
"""

from __future__ import annotations

import threading
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from lorafleet.v1alpha1 import sidecar_pb2 as pb
from prometheus_client import CollectorRegistry, make_wsgi_app

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from prometheus_client.registry import Collector

    from lorafleet_sidecar.agent import Agent


class _ThreadingServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _QuietHandler(WSGIRequestHandler):
    timeout = 10  # seconds for a client to send its request

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the parent's name
        """Say nothing: a scrape every few seconds is no news."""


class MetricsServer:
    """Serves one collector; `port` is the one that was really bound."""

    def __init__(self, listen: str, collector: Collector, agent: Agent) -> None:
        registry = CollectorRegistry()
        registry.register(collector)
        self._metrics: Callable[..., Iterable[bytes]] = make_wsgi_app(registry)
        self._agent = agent
        host, _, port = listen.rpartition(":")
        self._server = make_server(
            host.strip("[]"), int(port), self._app, _ThreadingServer, _QuietHandler
        )
        self.port: int = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)

    def start(self) -> None:
        """Serve from a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop serving and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _app(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/metrics":
            return self._metrics(environ, start_response)
        if path == "/healthz":
            return _text(start_response, "200 OK", "ok")
        if path == "/readyz":
            # Ready means: an engine was looked at. Whether that engine can take adapters is the
            # operator's question, answered by the inventory.
            inventory = self._agent.board.current
            state = pb.EngineHealth.Name(inventory.health).removeprefix("ENGINE_HEALTH_").lower()
            return _text(start_response, "200 OK", f"engine {state} {inventory.health_message}")
        return _text(start_response, "404 Not Found", "not found")


def _text(start_response: Any, status: str, body: str) -> list[bytes]:
    start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [body.strip().encode() + b"\n"]
