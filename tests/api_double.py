"""An API server of adapters only, for what a real one cannot be made to say: tens of thousands of
objects, statuses that its schema would refuse, sidecars behind pods/proxy, silence.

It keeps to what kubectl's --raw needs: plain HTTP on loopback, lists by limit and continue, Status.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_GROUP = "/apis/lorafleet.dev/v1alpha1"


class ApiDouble:
    """Serves `adapters` and `pools` (bodies), and `texts` (path -> text or a status).

    Each watch gets the next of `watches` as its whole answer, and 503 when there are no more.
    """

    def __init__(
        self,
        adapters: Sequence[dict[str, Any]] = (),
        pools: Sequence[dict[str, Any]] = (),
        texts: dict[str, str | int] | None = None,
        watches: Sequence[str] = (),
    ) -> None:
        self.watches = list(watches)
        self.adapters = adapters
        self.pools = pools
        self.texts = texts or {}
        self.asked: list[str] = []

    def __enter__(self) -> Self:
        double = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                double.asked.append(self.path)
                status, text = double.answer(self.path)
                self.send_response(status)
                kind = "application/json" if text.startswith("{") else "text/plain"
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def kubeconfig(self, path: Path) -> Path:
        """Write a kubeconfig for it, with the namespace team-a."""
        server = f"http://127.0.0.1:{self._server.server_port}"
        context = {"cluster": "x", "user": "x", "namespace": "team-a"}
        config = {
            "kind": "Config",
            "current-context": "x",
            "contexts": [{"name": "x", "context": context}],
            "clusters": [{"name": "x", "cluster": {"server": server}}],
            "users": [{"name": "x", "user": {}}],
        }
        path.write_text(json.dumps(config))
        return path

    def answer(self, target: str) -> tuple[int, str]:
        """Return the status and the text of an answer."""
        url = urlsplit(target)
        given = self.texts.get(url.path)
        if isinstance(given, str):
            return 200, given
        if isinstance(given, int):
            return given, _refusal(given)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        if "watch" in query:
            return (200, self.watches.pop(0)) if self.watches else (503, _refusal(503))
        for plural, bodies in (("loraadapters", self.adapters), ("enginepools", self.pools)):
            if url.path in (f"{_GROUP}/{plural}", f"{_GROUP}/namespaces/team-a/{plural}"):
                return 200, _page(bodies, query)
            for body in bodies if url.path.startswith(f"{_GROUP}/namespaces/team-a/") else ():
                if url.path.endswith(f"/{plural}/{body['metadata']['name']}"):
                    return 200, json.dumps(body)
        return 404, _refusal(404)


def _page(bodies: Sequence[dict[str, Any]], query: dict[str, str]) -> str:
    start, limit = int(query.get("continue", 0)), int(query.get("limit", len(bodies) or 1))
    more = str(start + limit) if start + limit < len(bodies) else ""
    metadata = {"resourceVersion": "1", "continue": more}
    items = [bodies[number] for number in range(start, min(start + limit, len(bodies)))]
    return json.dumps({"kind": "List", "metadata": metadata, "items": items})


def _refusal(status: int) -> str:
    reason = {403: "Forbidden", 404: "NotFound", 503: "ServiceUnavailable"}[status]
    return json.dumps(
        {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "message": f"the double says {reason}",
            "reason": reason,
            "code": status,
        }
    )
