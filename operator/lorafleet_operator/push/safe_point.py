"""The call that holds a safe point open: who may, what it is told, and when it is over."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lorafleet.errors import EngineUnreachable, InvalidAdapter, SourceNotFound
from lorafleet.v1alpha1 import push_pb2 as pb

from lorafleet_operator import recycle
from lorafleet_operator.cluster import pushed_specs
from lorafleet_operator.fleet import pool_loop
from lorafleet_operator.push import named
from lorafleet_operator.push.access import SAFE_POINT
from lorafleet_operator.push.stay import Stay

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from lorafleet_operator.fleet import Fleet
    from lorafleet_operator.push.access import Doorkeeper
    from lorafleet_operator.recycling import Recycled

MOST_SECONDS: Final = 86_400
_USUAL_SECONDS: Final = 3600
_LOOK_SECONDS: Final = 1.0
_SHOWN: Final = 5


async def hold(
    fleet: Fleet, door: Doorkeeper, request: pb.OpenSafePointRequest, context: Any
) -> AsyncIterator[pb.SafePointStatus]:
    """Hold a safe point of the adapter's pool open and yield what comes of it, until no engine is
    due, the time is over or the caller is gone.

    Raises AccessDenied; EngineUnreachable when this operator does not act for the pool.
    """
    seconds = request.timeout_seconds or _USUAL_SECONDS
    if seconds > MOST_SECONDS:
        raise InvalidAdapter(f"timeout_seconds is {seconds}, at most {MOST_SECONDS} are allowed")
    metadata = dict(context.invocation_metadata())
    about = {"namespace": request.namespace, "name": request.name, "what": SAFE_POINT}
    admit = partial(door.admit, metadata, "get", **about)
    account = await admit()
    pool = await _pool_of(fleet, request)

    async def rights() -> None:
        await door.may_open(await admit(), *pool.split("/"))

    await rights()
    stay = Stay(door, metadata, rights)
    _check_ours(fleet, pool)
    loop = asyncio.get_running_loop()
    deadline, last = loop.time() + seconds, None
    try:
        with fleet.safe_points.hold(pool, account.user) as held:
            fleet.wakeups.wake(pool_loop(pool))
            while loop.time() < deadline and not (last and last.done):
                news = await held.next(min(_LOOK_SECONDS, deadline - loop.time()))
                _check_ours(fleet, pool)
                await stay.check()
                if news is not None and (found := status_of(news)) != last:
                    last = found
                    yield found
    finally:
        fleet.wakeups.wake(pool_loop(pool))  # the status says so until it is looked at


async def _pool_of(fleet: Fleet, request: pb.OpenSafePointRequest) -> str:
    """Return the key of the pool that the adapter is of."""
    there = await pushed_specs.read(fleet.api, request.namespace, request.name)
    if there is None:
        raise SourceNotFound(f"no LoRAAdapter {request.namespace}/{request.name}")
    return named.pool_of(there["spec"], request.namespace)


def _check_ours(fleet: Fleet, pool: str) -> None:
    if not fleet.owns(pool):
        raise EngineUnreachable(f"another replica of the operator acts for pool {pool}")
    if fleet.world.pool(pool) is None:
        raise EngineUnreachable(f"there is no EnginePool {pool}, or it has not been seen yet")


def status_of(seen: Recycled) -> pb.SafePointStatus:
    """Return what a pass over the pool has seen, as callers are told. Pure."""
    left, going = recycle.remaining(seen.engines, seen.due), seen.going
    why = {name: due.why for name, due in seen.due.items()}
    names = ", ".join(engine.pod_name for engine in left[:_SHOWN])
    message = seen.message or (f"due: {names}" if left else "no engine is due")
    if going is not None:
        why[going.pod_name] = going.message
        message = f"{going.pod_name} is being recycled: {going.message}"
    found = pb.SafePointStatus(done=going is None and not left, message=message)
    for engine in seen.engines:
        found.engines.add(
            pod=engine.pod_name,
            loads=engine.loads,
            growth_per_load=-1 if engine.growth is None else max(engine.growth, 0),
            due=why.get(engine.pod_name, ""),
            instance=engine.instance,
            host_bytes=engine.host_bytes,
        )
    return found
