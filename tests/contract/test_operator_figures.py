"""What the operator counts of its own work: requests to the API server, passes, their waits."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from aiohttp import web
from kubernetes.aio.client import ApiClient, ApiException, Configuration
from lorafleet_operator import metrics
from lorafleet_operator.cluster.requests import send
from lorafleet_operator.rounds import Outcome, Rounds
from lorafleet_operator.settings import OperatorSettings
from lorafleet_operator.wake import Wakeups
from processes import free_port

if TYPE_CHECKING:
    from lorafleet_operator.fair import Turn


def sample(name: str, **labels: str) -> float:
    return metrics.REGISTRY.get_sample_value(name, labels) or 0.0


def requests(verb: str, code: str) -> float:
    return sample("lorafleet_operator_api_requests_total", verb=verb, code=code)


async def test_requests_are_counted_by_verb_and_answer_and_those_without_one_too() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.json_response({}, status=int(request.path.rpartition("/")[2]))

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    keys = [("PATCH", "200"), ("PATCH", "403"), ("GET", "404"), ("POST", "none")]
    before = {key: requests(*key) for key in keys}
    async with ApiClient(Configuration(host=f"http://{host}:{port}")) as api:
        await send(api, "PATCH", "/200", {})
        for verb, code in (("PATCH", "403"), ("GET", "404")):
            with pytest.raises(ApiException):
                await send(api, verb, f"/{code}")
    await runner.cleanup()
    async with ApiClient(Configuration(host=f"http://127.0.0.1:{free_port()}")) as api:
        with pytest.raises(Exception, match="Cannot connect"):
            await send(api, "POST", "/")
    assert {key: requests(*key) - before[key] for key in keys} == dict.fromkeys(keys, 1.0)


async def test_passes_are_counted_while_they_run_and_by_how_long_they_waited() -> None:
    going, on = asyncio.Event(), asyncio.Event()

    async def one_pass(uid: str, place: Turn) -> Outcome | None:
        going.set()
        await on.wait()
        return None

    wakeups = Wakeups()
    rounds = Rounds(one_pass, wakeups=wakeups, settings=OperatorSettings(), kind="tested")
    rounds.add("u", "ns/a")
    rounds.start()
    async with asyncio.timeout(60):
        await going.wait()
        assert sample("lorafleet_operator_passes_running", kind="tested") == 1
        on.set()
        while sample("lorafleet_operator_passes_running", kind="tested"):
            await asyncio.sleep(0.01)
    await rounds.close()
    assert sample("lorafleet_operator_pass_wait_seconds_count", kind="tested") == 1
    # Of the time since the object became known, not of some clock's beginning.
    assert sample("lorafleet_operator_pass_wait_seconds_bucket", kind="tested", le="60.0") == 1
