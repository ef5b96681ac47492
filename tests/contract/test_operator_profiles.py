"""A sidecar whose answer for the profile is none: one line, at the engine, and no guess."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc.aio
import pytest
from lorafleet.errors import LorafleetError
from lorafleet.profile import EngineProfile, LoraModule
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from lorafleet.v1alpha1 import sidecar_pb2_grpc as pb_grpc
from lorafleet_operator.api.v1alpha1 import EngineHealth
from lorafleet_operator.pool_pass import pool_status
from lorafleet_operator.transfer.client import SidecarClient
from lorafleet_operator.transfer.links import Endpoint, EngineLink
from lorafleet_operator.world import engine_view
from operator_builders import pod, pool
from waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MODULE = '{"name": "m", "in_features": 1, "out_features": 1, "kind": "linear"}'
GOOD = EngineProfile("base", modules=(LoraModule("m", 1, 1),))

MALFORMED = {
    "[]": "it is list, expected an object",
    "7": "it is int, expected an object",
    "null": "it is NoneType, expected an object",
    "{": "Expecting property name enclosed in double quotes",
    "[" * 100_000: "it is nested too deeply",
    "{}": "base_model is missing",
    '{"base_model": 1}': "base_model is int, expected str",
    '{"base_model": "b", "max_lora_rank": "8"}': "max_lora_rank is str, expected int",
    '{"base_model": "b", "max_loras": true}': "max_loras is bool, expected int",
    '{"base_model": "b", "flags": "fast"}': "flags is str, expected list",
    '{"base_model": "b", "flags": [1]}': "flags holds more than names",
    '{"base_model": "b", "colour": 1}': "'colour' is unknown",
    '{"base_model": "b", "modules": {}}': "modules is dict, expected list",
    '{"base_model": "b", "modules": [3]}': "modules[0] is int, expected an object",
    '{"base_model": "b", "modules": [{"name": "m"}]}': "modules[0].in_features is missing",
    f'{{"base_model": "b", "modules": [{MODULE}, {MODULE.replace("1,", "null,", 1)}]}}': (
        "modules[1].in_features is NoneType, expected int"
    ),
    f'{{"base_model": "b", "modules": [{MODULE.replace("linear", "round")}]}}': (
        "'round' is not a valid ModuleKind"
    ),
}


class Sidecar(pb_grpc.SidecarServiceServicer):  # type: ignore[misc]
    """Says that its engine is ready, and tells `profile` when it is asked for one."""

    def __init__(self, profile: str) -> None:
        self.profile = profile
        self.changed = asyncio.Event()
        self.inventory = pb.Inventory(
            pod_uid="uid-engine-0", engine_instance="i1", health=pb.ENGINE_HEALTH_READY
        )

    async def GetEngineProfile(self, *_: Any) -> pb.GetEngineProfileResponse:  # noqa: N802
        return pb.GetEngineProfileResponse(profile_json=self.profile)

    async def WatchEngine(self, *_: Any) -> AsyncIterator[pb.WatchEngineResponse]:  # noqa: N802
        while True:
            yield pb.WatchEngineResponse(inventory=self.inventory)
            await self.changed.wait()
            self.changed.clear()
            self.inventory.sequence += 1


@asynccontextmanager
async def running(sidecar: Sidecar) -> AsyncIterator[int]:
    server = grpc.aio.server()
    pb_grpc.add_SidecarServiceServicer_to_server(sidecar, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


async def test_what_is_no_profile_is_one_typed_line_that_says_where_it_goes_wrong() -> None:
    sidecar = Sidecar("")
    async with running(sidecar) as port:
        client = SidecarClient("127.0.0.1", port)
        for text, wrong in MALFORMED.items():
            sidecar.profile = text
            with pytest.raises(LorafleetError) as caught:
                await client.profile(10)
            line = str(caught.value)
            start = f"sidecar at 127.0.0.1:{port} sent an engine profile that cannot be read: "
            assert line.startswith(start + wrong), line
            assert "\n" not in line
            assert caught.value.reason == "InternalError"
        sidecar.profile = GOOD.to_json()
        assert await client.profile(10) == GOOD
        await client.close()


async def test_an_engine_without_a_readable_profile_takes_nothing_and_says_so_until_it_has_one() -> (
    None
):
    sidecar, changes = Sidecar('{"base_model": 1}'), []
    async with running(sidecar) as port:
        endpoint = Endpoint("team-a/engine-0", "uid-engine-0", "127.0.0.1", port)
        link = EngineLink(
            endpoint,
            heartbeat_seconds=60.0,
            on_change=lambda link, _: changes.append(link.profile_problem),
        )
        watching = asyncio.create_task(link.run())
        await until(lambda: link.profile_problem)
        view = engine_view(pod(), _Links(link))
        assert (view.health, view.takes_orders) == (EngineHealth.REFUSED, False)
        said = pool_status(pool(), [view]).conditions[0]
        assert (said.type, said.status, said.reason) == ("EnginesReady", "False", "EngineRefused")
        assert said.message.startswith("engine engine-0: sidecar at 127.0.0.1:")
        assert said.message.endswith("cannot be read: base_model is int, expected str")

        sidecar.profile = GOOD.to_json()
        sidecar.changed.set()
        await until(lambda: link.profile == GOOD)
        view = engine_view(pod(), _Links(link))
        assert (view.health, view.message) == (EngineHealth.READY, "")
        assert next(each for each in changes if each).endswith("base_model is int, expected str")
        assert changes[-1] == "", "whoever waits for the engine is told"
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await link.close()


class _Links:
    """All links, of which there is one."""

    def __init__(self, link: EngineLink) -> None:
        self._link = link

    def get(self, _: str) -> EngineLink:
        return self._link
