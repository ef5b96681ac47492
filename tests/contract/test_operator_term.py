"""Requests to the API server wait for their turn; the last look at the term comes after that."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.request import getproxies_environment

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
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

_PLACE: Final = path(("lorafleet.dev", "v1alpha1", "loraadapters"), "team-a", "x")


@asynccontextmanager
async def _api_server(
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> AsyncIterator[None]:
    """Have `answer` be the API server of clients that are made meanwhile."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    before = client.Configuration.get_default_copy()
    port = runner.addresses[0][1]
    client.Configuration.set_default(client.Configuration(host=f"http://localhost:{port}"))
    try:
        yield
    finally:
        client.Configuration.set_default(before)
        await runner.cleanup()


async def test_a_write_that_waited_for_its_turn_until_the_term_was_over_is_not_sent() -> None:
    seen: list[str] = []
    hold = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.method)
        if request.method == "GET":
            await hold.wait()
        return web.json_response({"metadata": {"name": "x"}})

    mine = Term()
    async with _api_server(answer), BoundedClient() as api:
        with mine.acting():
            reads = [asyncio.create_task(ask(api, "GET", _PLACE)) for _ in range(16)]
            await until(lambda: len(seen) == 16)
            write = asyncio.create_task(ask(api, "PATCH", _PLACE, {}))
            await asyncio.sleep(0)
            mine.end()
            hold.set()
            await asyncio.gather(*reads)
            with pytest.raises(TermOver):
                await write
    assert seen == ["GET"] * 16


async def test_a_password_in_the_home_folder_is_neither_read_nor_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str | None] = []

    async def answer(request: web.Request) -> web.Response:
        sent.append(request.headers.get("Authorization"))
        return web.json_response({})

    (tmp_path / "netrc").write_text("machine localhost login me password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name in getproxies_environment():
        for each in (f"{name}_proxy", f"{name}_proxy".upper()):
            monkeypatch.delenv(each, raising=False)
    async with _api_server(answer), BoundedClient() as api:
        await ask(api, "GET", _PLACE)
    assert sent == [None]


async def test_a_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.raw_path)
        return web.json_response({})

    async with _api_server(answer):
        proxy = client.Configuration.get_default().host
        monkeypatch.setenv("http_proxy", proxy)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        client.Configuration.get_default().host = "http://cluster.invalid"
        async with BoundedClient() as api:
            await ask(api, "GET", _PLACE)
    assert [each.split("/apis")[0] for each in asked] == ["http://cluster.invalid"]


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
