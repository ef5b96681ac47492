"""Requests to the API server wait for their turn; the last look at the term comes after that."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from kubernetes.aio import client
from lorafleet_operator.cluster.bounded import BoundedClient
from lorafleet_operator.cluster.requests import ask, path
from lorafleet_operator.fair import Turn
from lorafleet_operator.passes import adapter_pass
from lorafleet_operator.term import Term, TermOver
from operator_rig import operator
from waiting import until

if TYPE_CHECKING:
    from pathlib import Path


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


@pytest.mark.parametrize(("atomic", "version"), [(True, "7"), (False, "6")])
async def test_what_others_decided_is_read_once_in_a_term_for_a_watch_may_be_behind(
    tmp_path: Path, atomic: bool, version: str
) -> None:
    seen: list[str] = []
    tested: list[str] = []
    rule = {"rollout": {"atomic": True}} if atomic else {}
    body: dict[str, Any] = {
        "metadata": {
            "namespace": "team-a",
            "name": "x",
            "uid": "u",
            "generation": 1,
            "resourceVersion": "6",
        },
        "spec": {"source": {}, "revision": "sha256:" + "0" * 64, **rule},
    }
    decided = {**body, "metadata": {**body["metadata"], "resourceVersion": "7"}}

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.method)
        if request.method == "GET":
            return web.json_response(decided)
        test, _ = json.loads(await request.text())
        tested.append(test["value"])
        return web.json_response({}, status=409)  # so that the pass ends here

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    try:
        async with (
            operator(tmp_path) as op,
            client.ApiClient(client.Configuration(host=f"http://{host}:{port}")) as api,
        ):
            op.fleet.api = api
            op.fleet.world.living.add("u")  # type: ignore[attr-defined]
            op.fleet.bodies.keep(body)
            place = Turn(asyncio.Semaphore(1), taken=True)
            first, later = Term(), Term()
            for term in (first, first, later):
                with term.acting():
                    found = await adapter_pass("u", place, op.fleet)
                assert found is not None
                assert not found.well
    finally:
        await runner.cleanup()
    assert tested == [version] * 3
    assert seen == (["GET", "PATCH", "PATCH", "GET", "PATCH"] if atomic else ["PATCH"] * 3)
