"""An API server that refuses or does not answer in the middle of a pass is no fault of the adapter."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from kubernetes.aio.client import ApiClient, Configuration
from lorafleet_operator.api.names import FINALIZER
from lorafleet_operator.cluster.requests import NoAnswer
from lorafleet_operator.cluster.writes import StatusWriter
from lorafleet_operator.fair import Turn
from lorafleet_operator.gate import gated, pool_of_adapter
from lorafleet_operator.passes import adapter_pass
from operator_builders import adapter
from operator_rig import operator
from sidecar_rig import Rig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from lorafleet_operator.api.v1alpha1 import LoRAAdapter
    from operator_rig import Operator


class Server:
    """Takes every write; reads of Secrets fail."""

    def __init__(self) -> None:
        self.statuses: list[dict[str, Any]] = []
        self.refusing = False

    async def answer(self, request: web.Request) -> web.Response:
        if self.refusing or "/secrets/" in request.path:
            return web.json_response({"message": "etcd is away"}, status=503)
        body = json.loads(await request.text())
        if request.path.endswith("/status"):
            self.statuses.append(body["status"])
        version = str(len(self.statuses) + 1)
        metadata = {**body.get("metadata", {}), "resourceVersion": version}
        return web.json_response({**body, "metadata": metadata})

    def reasons(self) -> list[str]:
        return [c["reason"] for s in self.statuses for c in s["conditions"] if c["type"] == "Ready"]


@asynccontextmanager
async def served(op: Operator) -> AsyncIterator[Server]:
    """Give the operator an API server."""
    server, app = Server(), web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    async with ApiClient(Configuration(host=f"http://{host}:{port}")) as api:
        op.fleet.api, op.fleet.writer = api, StatusWriter(api, op.fleet.bodies)
        yield server
    await runner.cleanup()


def watched(op: Operator, made: LoRAAdapter) -> str:
    """Make an adapter what the watch has brought; return its UID."""
    body = made.to_api()
    body["metadata"] |= {
        "resourceVersion": "1",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "finalizers": [FINALIZER],
    }
    op.fleet.world.living.add(body["metadata"]["uid"])  # type: ignore[attr-defined]
    op.fleet.bodies.keep(body)
    return str(body["metadata"]["uid"])


def place() -> Turn:
    return Turn(asyncio.Semaphore(1))


async def test_a_secret_that_cannot_be_read_now_is_a_source_that_is_not_available(
    volume: Path, tmp_path: Path
) -> None:
    async with Rig(volume / "a", pod_uid="u0") as a, operator(tmp_path, a) as op, served(op) as api:
        source = {"http": {"url": "https://x.test/"}, "credentialsSecretRef": {"name": "keys"}}
        made = adapter(source=source)
        op.keep(made)
        outcome = await adapter_pass(watched(op, made), place(), op.fleet)
        assert outcome is not None
        assert not outcome.well, "tried again soon"
        assert api.reasons() == ["SourceUnavailable"]
        assert "Secret team-a/keys: 503" in json.dumps(api.statuses)


async def test_a_status_that_cannot_be_written_is_written_by_the_next_pass(
    volume: Path, tmp_path: Path
) -> None:
    async with Rig(volume / "a", pod_uid="u0") as a, operator(tmp_path, a) as op, served(op) as api:
        uid = watched(op, op.adapter("sql"))
        api.refusing = True
        with pytest.raises(NoAnswer, match="the status of sql: 503"):
            await adapter_pass(uid, place(), op.fleet)
        assert list(a.engine.served) == ["team-a/sql"], "the engine serves it all the same"
        outcome = await gated(adapter_pass, pool_of_adapter, op.fleet)(uid, place())
        assert outcome is not None
        assert not outcome.well
        api.refusing = False
        outcome = await gated(adapter_pass, pool_of_adapter, op.fleet)(uid, place())
        assert outcome is not None
        assert outcome.well
        assert api.reasons() == ["Ready"]
