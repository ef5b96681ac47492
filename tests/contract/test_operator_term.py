"""Requests to the API server wait for their turn; the last look at the term comes after that."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from kubernetes.aio import client
from lorafleet_operator.cluster.bounded import BoundedClient
from lorafleet_operator.cluster.requests import ask, path
from lorafleet_operator.term import Term, TermOver
from sidecar_rig import until


async def test_a_write_that_waited_for_its_turn_until_the_term_was_over_is_not_sent() -> None:
    seen: list[str] = []
    hold = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.method)
        if request.method == "GET":
            await hold.wait()
        return web.json_response({"metadata": {"name": "x"}})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    before = client.Configuration.get_default_copy()
    host, port = runner.addresses[0][:2]
    client.Configuration.set_default(client.Configuration(host=f"http://{host}:{port}"))
    mine = Term()
    async with BoundedClient() as api:
        place = path(("lorafleet.dev", "v1alpha1", "loraadapters"), "team-a", "x")
        with mine.acting():
            reads = [asyncio.create_task(ask(api, "GET", place)) for _ in range(16)]
            await until(lambda: len(seen) == 16)
            write = asyncio.create_task(ask(api, "PATCH", place, {}))
            await asyncio.sleep(0)
            mine.end()
            hold.set()
            await asyncio.gather(*reads)
            with pytest.raises(TermOver):
                await write
    assert seen == ["GET"] * 16
    client.Configuration.set_default(before)
    await runner.cleanup()
