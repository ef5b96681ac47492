"""A small real gateway: it splits requests over the Services of HTTPRoutes by their weights.

`python weighted_gateway.py KUBECONFIG NAMESPACE PORT` reads HTTPRoutes and EndpointSlices of the
namespace from the API server again and again, as a gateway's controller watches them, and passes
each request on to a ready endpoint. What Gateway API says of weights, hosts and headers holds: a
backend of weight 0 gets nothing, one without an endpoint answers 503 for its share, no match is 404.
The answer's header `x-backend` names the Service.
"""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from kube_rest import KubeRest, Refused

if TYPE_CHECKING:
    from collections.abc import Mapping
    from email.message import Message

    from kube_rest import Json

EVERY_SECONDS = 0.05
ROUTES = "/apis/gateway.networking.k8s.io/v1/namespaces/{}/httproutes"


@dataclass(frozen=True)
class Table:
    """Where requests go, as the API server said last."""

    routes: tuple[Json, ...] = ()
    endpoints: Mapping[str, tuple[str, ...]] | None = None
    """Service -> `address:port` of each ready endpoint."""

    @classmethod
    def read(cls, kube: KubeRest, namespace: str) -> Table:
        """Return the table of now."""
        routes = kube.get(ROUTES.format(namespace))["items"]
        endpoints: dict[str, tuple[str, ...]] = {}
        slices = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        for each in kube.get(slices)["items"]:
            service = each["metadata"]["labels"]["kubernetes.io/service-name"]
            endpoints[service] = endpoints.get(service, ()) + tuple(
                f"{endpoint['addresses'][0]}:{port['port']}"
                for endpoint in each["endpoints"] or []
                if endpoint["conditions"]["ready"]
                for port in each["ports"]
            )
        return cls(tuple(routes), endpoints)

    def backend(self, host: str, headers: Message[str, str]) -> str | None:
        """Return the Service that the request goes to, by weight; None where nothing matches."""
        for route in self.routes:
            hosts = route["spec"].get("hostnames") or [host]
            for rule in route["spec"]["rules"]:
                if host in hosts and any(_matches(m, headers) for m in rule["matches"]):
                    refs = rule["backendRefs"]
                    weights = [ref["weight"] for ref in refs]
                    if sum(weights):
                        return str(random.choices([r["name"] for r in refs], weights)[0])
        return None


def _matches(match: Json, headers: Message[str, str]) -> bool:
    return all(headers.get(each["name"]) == each["value"] for each in match.get("headers", []))


def _accept(kube: KubeRest, route: Json) -> None:
    """Say in the route's status that it is followed, as gateways do."""
    metadata = route["metadata"]
    condition = {
        "type": "Accepted",
        "status": "True",
        "reason": "Accepted",
        "message": "",
        "lastTransitionTime": datetime.now(UTC).isoformat(timespec="seconds"),
        "observedGeneration": metadata["generation"],
    }
    parent = {
        "controllerName": "tests.invalid/gateway",
        "parentRef": route["spec"]["parentRefs"][0],
    }
    path = f"{ROUTES.format(metadata['namespace'])}/{metadata['name']}/status"
    # A route that went meanwhile needs none.
    with contextlib.suppress(Refused):
        kube.merge(path, {"status": {"parents": [{**parent, "conditions": [condition]}]}})


class Gateway(ThreadingHTTPServer):
    """Passes requests on as its table says."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), Passing)
        self.table = Table()
        self.client = httpx.Client(timeout=60)

    def follow(self, kube: KubeRest, namespace: str) -> None:
        """Keep the table as the API server says, for ever, and accept each route once."""
        accepted: dict[str, int] = {}
        while True:
            self.table = Table.read(kube, namespace)
            for route in self.table.routes:
                uid, generation = route["metadata"]["uid"], route["metadata"]["generation"]
                if accepted.get(uid) != generation:
                    _accept(kube, route)
                    accepted[uid] = generation
            time.sleep(EVERY_SECONDS)


class Passing(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        assert isinstance(self.server, Gateway)
        body = self.rfile.read(int(self.headers["content-length"]))
        table = self.server.table
        backend = table.backend(self.headers["host"].partition(":")[0], self.headers)
        if backend is None:
            return self._answer(404, "", b"{}")
        places = (table.endpoints or {}).get(backend, ())
        if not places:
            return self._answer(503, backend, b"{}")
        url = f"http://{random.choice(places)}{self.path}"
        try:
            answer = self.server.client.post(url, content=body)
        except httpx.TransportError:
            return self._answer(502, backend, b"{}")
        return self._answer(answer.status_code, backend, answer.content)

    def _answer(self, status: int, backend: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.send_header("x-backend", backend)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing for each request."""


def main(kubeconfig: str, namespace: str, port: str) -> None:
    gateway = Gateway(int(port))
    with KubeRest(Path(kubeconfig)) as kube:
        gateway.table = Table.read(kube, namespace)
        threading.Thread(target=gateway.follow, args=(kube, namespace), daemon=True).start()
        gateway.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
