"""The operator's push service in this process, before an API server that knows tokens and adapters.

The service, its spool and its client of the API server are the real ones.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web
from kubernetes.aio.client import ApiClient, Configuration
from lorafleet.buffers import give_back_freed
from lorafleet_operator.fleet import Fleet
from lorafleet_operator.push.server import PushServer
from lorafleet_operator.settings import OperatorSettings
from lorafleet_operator.world import World
from pushing import Trainer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Reviews:
    """Knows whose tokens are (`users`); each may push and make adapters in `namespaces`.

    Questions wait for `answers`, writes of adapters for `writes`.
    """

    def __init__(self) -> None:
        self.users = {"good": "system:serviceaccount:team-a:trainer"}
        self.users |= {f"good-{n}": f"system:serviceaccount:team-{n}:trainer" for n in range(10)}
        self.namespaces = {"team-a"}
        self.adapters: dict[str, dict[str, Any]] = {}
        self.events: list[dict[str, Any]] = []
        self.asked = 0
        self.answers, self.writes = asyncio.Event(), asyncio.Event()
        self.answers.set()
        self.writes.set()
        self._versions = itertools.count(1)

    def app(self) -> web.Application:
        made = web.Application()
        made.router.add_post("/apis/authentication.k8s.io/v1/tokenreviews", self._token)
        made.router.add_post("/apis/authorization.k8s.io/v1/subjectaccessreviews", self._access)
        place = "/apis/lorafleet.dev/v1alpha1/namespaces/{namespace}/loraadapters"
        made.router.add_get(place + "/{name}", self._get)
        made.router.add_post(place, self._create)
        made.router.add_patch(place + "/{name}", self._patch)
        made.router.add_post("/api/v1/namespaces/{namespace}/events", self._event)
        return made

    async def _token(self, request: web.Request) -> web.Response:
        spec = (await request.json())["spec"]
        self.asked += 1
        await self.answers.wait()
        user = self.users.get(spec["token"])
        status = {"authenticated": user is not None, "audiences": spec["audiences"]}
        return web.json_response({"status": {**status, "user": {"username": user}}})

    async def _access(self, request: web.Request) -> web.Response:
        about = (await request.json())["spec"]["resourceAttributes"]
        await self.answers.wait()
        return web.json_response({"status": {"allowed": about["namespace"] in self.namespaces}})

    async def _event(self, request: web.Request) -> web.Response:
        self.events.append(await request.json())
        return web.json_response({})

    async def _get(self, request: web.Request) -> web.Response:
        there = self.adapters.get(request.match_info["name"])
        return web.json_response(there or {}, status=200 if there else 404)

    async def _create(self, request: web.Request) -> web.Response:
        body = await request.json()
        name = body["metadata"]["name"]
        if "dryRun" not in request.query:
            await self.writes.wait()
            version = str(next(self._versions))
            uid = f"uid-{version}"
            body["metadata"] |= {"uid": uid, "generation": 1, "resourceVersion": version}
            self.adapters[name] = body
        return web.json_response(body)

    async def _patch(self, request: web.Request) -> web.Response:
        await self.writes.wait()
        there = self.adapters.get(request.match_info["name"])
        if there is None:
            return web.json_response({"message": "gone"}, status=404)
        *tests, change = json.loads(await request.text())
        if any(there["metadata"][t["path"].rpartition("/")[2]] != t["value"] for t in tests):
            return web.json_response({"message": "changed"}, status=409)
        there["spec"]["source"]["push"] = change["value"]
        there["metadata"]["generation"] += 1
        there["metadata"]["resourceVersion"] = f"{next(self._versions)}"
        return web.json_response(there)


class Door:
    def __init__(self, reviews: Reviews, server: PushServer, root: Path) -> None:
        self.reviews, self.server, self.root = reviews, server, root
        self.fleet = server._fleet
        self.spool = server._spool

    def trainer(self, token: str = "good", **more: Any) -> Trainer:
        return Trainer(f"127.0.0.1:{self.server.port}", token, "team-a", **more)

    def named(self, name: str = "rl") -> str:
        """Return the revision that the adapter names."""
        found: str = self.reviews.adapters[name]["spec"]["source"]["push"]["revision"]
        return found

    def files(self) -> list[str]:
        return sorted(str(f.relative_to(self.root)) for f in self.root.rglob("*") if f.is_file())


@asynccontextmanager
async def door(root: Path, **settings: Any) -> AsyncIterator[Door]:
    """Serve pushes on loopback."""
    reviews = Reviews()
    runner = web.AppRunner(reviews.app())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    async with ApiClient(Configuration(host=f"http://127.0.0.1:{port}")) as api:
        given = {"push_listen": "127.0.0.1:0", "push_dir": root, **settings}
        fleet = Fleet(OperatorSettings(**given), World({}, {}, {}, {}, set()), api)
        server = PushServer(fleet, lambda: True)
        await server.start()
        try:
            yield Door(reviews, server, root)
        finally:
            reviews.answers.set()
            reviews.writes.set()
            await server.stop()
            await fleet.close()
            await runner.cleanup()


async def main(root: str) -> None:
    """Serve until this process is killed; print the port."""
    async with door(Path(root)) as made:
        print(made.server.port, flush=True)
        while True:  # as the operator does
            give_back_freed()
            await asyncio.sleep(1)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
