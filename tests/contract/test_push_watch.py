"""A trainer that waits hears of what comes when it comes, not when somebody looks again."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from lorafleet.v1alpha1 import push_pb2 as pb
from lorafleet.v1alpha1 import push_pb2_grpc as pb_grpc
from lorafleet_operator.push import service
from operator_builders import pool
from push_door import door
from pushing import Content

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


async def test_a_watch_hears_of_a_status_and_of_engines_without_looking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = itertools.count(1)
    monkeypatch.setattr(service, "_LOOK_SECONDS", 3600.0)
    monkeypatch.setattr(service, "status_of", lambda *_: pb.PushStatus(step=next(looks)))
    async with door(tmp_path / "pushed") as there:
        there.fleet.world.pools["team-a"] = [pool()]  # type: ignore[index]
        trainer = there.trainer()
        await trainer.push(Content.of(1, 2), 7)
        body = there.reviews.adapters["rl"]
        uid = body["metadata"]["uid"]
        there.fleet.world.living.add(uid)  # type: ignore[attr-defined]
        async with trainer.channel() as channel:
            stub: Any = pb_grpc.PushServiceStub(channel)  # type: ignore[no-untyped-call]
            request = pb.WatchPushRequest(namespace="team-a", name="rl")
            call = stub.WatchPush(request, metadata=trainer.metadata, timeout=60)
            assert (await call.read()).step == 1
            metadata = {**body["metadata"], "resourceVersion": "1000"}
            there.fleet.bodies.keep({**body, "metadata": metadata})
            assert (await call.read()).step == 2
            there.fleet.wakeups.wake("team-a/rl")
            assert (await call.read()).step == 3
            call.cancel()
