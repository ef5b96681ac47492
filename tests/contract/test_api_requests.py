"""Requests to the API server are paths and dicts: no models of all kinds of objects in memory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import lorafleet_operator
import pytest
from aiohttp import web
from kubernetes.aio.client import ApiClient, ApiException, Configuration
from lorafleet_operator.cluster.requests import MERGE_PATCH, ask, path, send

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def server() -> AsyncIterator[tuple[ApiClient, list[tuple[str, ...]]]]:
    """A client, and what its server was asked: verb, path with query, content type, token."""
    seen: list[tuple[str, ...]] = []

    async def answer(request: web.Request) -> web.Response:
        headers = request.headers
        seen.append(
            (
                request.method,
                request.raw_path,
                headers.get("Content-Type", ""),
                headers.get("Authorization", ""),
            )
        )
        if request.path.endswith("missing"):
            return web.json_response({"message": "there is none"}, status=404)
        return web.json_response({"got": await request.text()}, status=201)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    configuration = Configuration(host=f"http://{host}:{port}")
    configuration.api_key["BearerToken"] = "Bearer c0ffee"
    async with ApiClient(configuration) as api:
        yield api, seen
    await runner.cleanup()


async def test_a_request_has_its_path_content_type_query_and_token(
    server: tuple[ApiClient, list[tuple[str, ...]]],
) -> None:
    api, seen = server
    pods, mine = ("", "v1", "pods"), ("lorafleet.dev", "v1alpha1", "loraadapters")
    place = path(mine, "team-a", "x/../y", "status")
    found = await send(api, "PATCH", place, {"a": 1}, content_type=MERGE_PATCH)
    assert found == (201, {"got": '{"a": 1}'})
    await ask(api, "GET", path(pods), query={"labelSelector": "a=b,c"})
    assert seen == [
        (
            "PATCH",
            "/apis/lorafleet.dev/v1alpha1/namespaces/team-a/loraadapters/x%2F..%2Fy/status",
            MERGE_PATCH,
            "Bearer c0ffee",
        ),
        ("GET", "/api/v1/pods?labelSelector=a%3Db,c", "application/json", "Bearer c0ffee"),
    ]


async def test_an_error_carries_what_the_server_said(
    server: tuple[ApiClient, list[tuple[str, ...]]],
) -> None:
    with pytest.raises(ApiException) as caught:
        await ask(server[0], "GET", path(("", "v1", "pods"), "team-a", "missing"))
    assert (caught.value.status, caught.value.reason) == (404, "Not Found")
    assert caught.value.body == '{"message": "there is none"}'


def test_nothing_else_of_the_library_is_used() -> None:
    package = Path(lorafleet_operator.__path__[0])
    sources = [path.read_text() for path in package.rglob("*.py")]
    used = {
        name
        for source in sources
        if "from kubernetes.aio import client" in source
        for name in re.findall(r"\bclient\.([A-Z]\w*)", source)
    }
    assert used == {"ApiClient", "ApiException", "Configuration"}
    assert sum("kubernetes" in re.findall(r"^\s*import (\w+)", s, re.M) for s in sources) == 0
