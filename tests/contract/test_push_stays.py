"""Calls that last: the token that opened one is over meanwhile, or a right is taken back."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc.aio
import pytest
from lorafleet.v1alpha1 import push_pb2 as pb
from lorafleet.v1alpha1 import push_pb2_grpc as pb_grpc
from lorafleet_operator.push import service, stay
from lorafleet_operator.world import pool_engines
from operator_builders import pool
from push_door import Door, door
from pushing import Content

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from lorafleet_operator.api.v1alpha1 import EnginePool
    from lorafleet_operator.world import EngineView

RL = {"namespace": "team-a", "name": "rl"}
CALLS = {"WatchPush": pb.WatchPushRequest(**RL), "OpenSafePoint": pb.OpenSafePointRequest(**RL)}


@pytest.fixture
async def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Door]:
    monkeypatch.setattr(stay, "_AGAIN_SECONDS", 0.0)
    async with door(tmp_path / "pushed") as made:
        made.fleet.world.pools["team-a"] = [pool()]  # type: ignore[index]
        await made.trainer().push(Content.of(1, 2), 7)
        made.fleet.world.living.add(made.reviews.adapters["rl"]["metadata"]["uid"])  # type: ignore[attr-defined]
        yield made


@asynccontextmanager
async def lasting(there: Door, method: str) -> AsyncIterator[asyncio.Task[grpc.aio.AioRpcError]]:
    """Make the call; yield what waits for its end, once it goes on and was let in a second time."""
    trainer = there.trainer()
    async with trainer.channel() as channel:
        stub = pb_grpc.PushServiceStub(channel)  # type: ignore[no-untyped-call]
        call = getattr(stub, method)(CALLS[method], metadata=trainer.metadata)
        ending = asyncio.create_task(ended(call))
        before = there.reviews.asked
        async with asyncio.timeout(60):
            while there.reviews.asked < before + 3 and not ending.done():
                await asyncio.sleep(0.01)
        assert not ending.done(), ending.result()
        yield ending


async def ended(call: Any) -> grpc.aio.AioRpcError:
    async def to_its_end() -> None:
        async for _ in call:
            pass

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(to_its_end(), 60)
    return caught.value


@pytest.mark.parametrize("method", CALLS)
async def test_a_call_outlives_its_token_only_for_minutes_and_may_be_made_again(
    there: Door, method: str
) -> None:
    async with lasting(there, method) as ending:
        del there.reviews.users["good"]
        error = await ending
    assert error.code() is grpc.StatusCode.UNAVAILABLE, "who has another token comes again"
    assert error.details() == (
        "the call ends, for the token is not valid for audience lorafleet any more"
    )
    assert not there.fleet.safe_points.of("team-a/pool")


@pytest.mark.parametrize("method", CALLS)
async def test_a_right_that_is_taken_back_ends_the_calls_that_it_let_in(
    there: Door, method: str
) -> None:
    async with lasting(there, method) as ending:
        there.reviews.namespaces.clear()
        error = await ending
    assert error.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "trainer may not " in str(error.details())


async def test_an_api_server_that_does_not_say_ends_no_call(
    there: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lorafleet_operator.push.access._PATIENCE_SECONDS", 0.05)
    async with lasting(there, "WatchPush") as ending:
        there.reviews.answers.clear()
        asked = there.reviews.asked
        async with asyncio.timeout(60):
            while there.reviews.asked < asked + 3:
                await asyncio.sleep(0.01)
        there.reviews.answers.set()
        async with asyncio.timeout(60):
            while there.reviews.asked < asked + 6:
                await asyncio.sleep(0.01)
        assert not ending.done()
        ending.cancel()


async def test_what_a_watch_tells_is_of_the_pool_that_the_adapter_moved_to(
    there: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def engines(of: EnginePool, *world: Any) -> list[EngineView]:
        seen.append(of.key)
        return pool_engines(of, *world)

    monkeypatch.setattr(service, "pool_engines", engines)
    at_home = pool()
    elsewhere = at_home.metadata.model_copy(update={"namespace": "team-b"})
    moved_to = at_home.model_copy(update={"metadata": elsewhere})
    there.fleet.world.pools["team-b"] = [moved_to]  # type: ignore[index]
    body = there.reviews.adapters["rl"]
    metadata = {**body["metadata"], "resourceVersion": "11"}
    moved = {**body["spec"], "poolRef": {"namespace": "team-b", "name": "pool"}}
    async with lasting(there, "WatchPush") as ending:
        assert set(seen) == {"team-a/pool"}
        there.fleet.bodies.keep({**body, "metadata": metadata, "spec": moved})
        async with asyncio.timeout(60):
            while seen[-1] != "team-b/pool" and not ending.done():
                await asyncio.sleep(0.01)
        assert not ending.done(), ending.result()
        ending.cancel()
