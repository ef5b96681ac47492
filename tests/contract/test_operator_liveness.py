"""/healthz follows the API server alone: passes go on without one and prove nothing."""

from __future__ import annotations

import asyncio

import httpx
from aiohttp import web
from kubernetes.aio.client import ApiClient, Configuration
from lorafleet_operator.fleet import Fleet
from lorafleet_operator.passes import pool_pass
from lorafleet_operator.pool_pass import reconcile_pool
from lorafleet_operator.probes import Probes
from lorafleet_operator.settings import OperatorSettings
from lorafleet_operator.world import World
from operator_builders import pool
from processes import free_port
from waiting import until


class ApiServer:
    """Answers every list with nothing, and counts."""

    def __init__(self) -> None:
        self.lists = 0
        app = web.Application()
        app.router.add_get("/{path:.*}", self._list)
        self.runner = web.AppRunner(app, handle_signals=False)

    async def start(self) -> str:
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        host, port = self.runner.addresses[0][:2]
        return f"http://{host}:{port}"

    async def _list(self, _: web.Request) -> web.Response:
        self.lists += 1
        return web.json_response({"items": []})


async def test_an_operator_without_its_api_server_stops_being_alive_though_its_passes_end() -> None:
    server = ApiServer()
    configuration = Configuration(host=await server.start())
    port = free_port()
    settings = OperatorSettings(listen=f"127.0.0.1:{port}", liveness_seconds=2.0)
    world = World({}, {"team-a": [pool()]}, {}, {}, set())
    async with ApiClient(configuration) as api, httpx.AsyncClient(trust_env=False) as client:
        fleet = Fleet(settings, world, api)
        status = (await reconcile_pool(pool(), fleet)).to_api()
        known = pool().to_api()
        body = {**known, "metadata": {**known["metadata"], "resourceVersion": "1"}}
        probes = await Probes.start(fleet)

        async def health() -> int:
            return (await client.get(f"http://127.0.0.1:{port}/healthz")).status_code

        await until(lambda: server.lists >= 2)  # nothing happens, and the pulse proves life
        async with asyncio.timeout(60):
            while await health() != 200:  # this process may have stood still for so long
                await asyncio.sleep(0.05)
        await server.runner.cleanup()
        async with asyncio.timeout(60):
            while await health() == 200:
                assert await pool_pass({**body, "status": status}, fleet)
                await asyncio.sleep(0.05)
        assert await health() == 503
        await probes.stop()
        await fleet.links.close()
