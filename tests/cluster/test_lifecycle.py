"""Engines that come, restart, are drained, are recycled and go, on a real API server."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pytest
from gated_fleet import GatedFleet
from localstack import LocalStack
from simulated_engine import Behaviour

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from localcluster import LocalCluster
    from localstack import Operator

DRAIN = "lorafleet.dev/drain"
REPLICAS = 2


@dataclass
class Scene:
    """A fleet and the operator that acts for it."""

    fleet: GatedFleet
    start: Callable[[], Operator]
    operator: Operator


@pytest.fixture
async def scene(cluster: LocalCluster, namespace: str, tmp_path: Path) -> AsyncIterator[Scene]:
    """Three engines with the gate and an operator; six adapters, Ready."""
    made = GatedFleet(
        cluster.kubeconfig, tmp_path, namespace, replicas=REPLICAS, behaviour=Behaviour()
    )
    with LocalStack(tmp_path) as stack:
        async with made:
            await asyncio.gather(*(made.apply(f"a-{number}") for number in range(6)))
            await asyncio.gather(*(made.add(f"engine-{number}") for number in range(3)))
            start = partial(
                stack.start_operator,
                cluster.kubeconfig,
                LORAFLEET_NAMESPACES=namespace,
                LORAFLEET_VOLUME_ROOT=str(made.root),
                LORAFLEET_HEARTBEAT_SECONDS="2",
                LORAFLEET_ENGINE_GRACE_SECONDS="20",
            )
            operator = start()
            await made.settled(60)
            await made.until(lambda: all_warm(made))
            yield Scene(made, start, operator)


def warm(fleet: GatedFleet, name: str) -> bool:
    return fleet.reasons(name)[-1:] == ["Warm"]


async def test_engines_that_come_restart_and_leave_take_traffic_when_they_should(
    scene: Scene,
) -> None:
    made = scene.fleet
    for name in made.engines:
        assert len(made.reasons(name)) <= 2, "a word when it waits, a word when it need not"

    # vLLM of one restarts: it is out until the sidecar has brought everything back.
    there = made.served_by("engine-1")
    assert there
    made.behaviour.restore_seconds = made.behaviour.load_seconds = 1.5
    made.engines["engine-1"].restart_engine()
    await made.until(lambda: made.reasons("engine-1")[-2:] == ["Warming", "Warm"])
    assert [each.served for each in made.said if each.pod == "engine-1"][-1] >= there
    made.behaviour.load_seconds = 0.0

    # One is marked for drain: others have its adapters before it gets no traffic.
    unloads, mine = made.books.unloads, made.served_by("engine-0")
    await made.label("engine-0", DRAIN, "true")
    await made.until(lambda: made.reasons("engine-0")[-1] == "Drained")
    others = [made.served_by(name) for name in ("engine-1", "engine-2")]
    assert all(mine <= each for each in others), "two replicas on the two that stay"
    assert made.books.unloads == unloads, "what was sent to it a moment ago is still answered"
    await made.settled_on({"engine-1", "engine-2"})

    # The mark is taken back: it may take traffic again, and what others have now goes from it.
    await made.label("engine-0", DRAIN, None)
    await made.until(lambda: warm(made, "engine-0"))

    # A pod is evicted: its end is announced, and its adapters move while it may still answer.
    await made.label("engine-2", "lorafleet.dev/cordoned", "true")
    mine = made.served_by("engine-1")
    await made.evict("engine-1")
    await made.until(lambda: made.reasons("engine-1")[-1] == "Deleting")
    await made.settled_on({"engine-0", "engine-2"})
    assert mine <= made.served_by("engine-0")
    await made.end("engine-1")

    # A pod of the same name is another engine; it has nothing, and nothing that it has to wait for.
    await made.add("engine-1")
    await made.until(lambda: warm(made, "engine-1"))
    assert made.served_by("engine-1") == frozenset()


async def test_a_new_engine_waits_for_what_is_for_every_engine_and_not_for_ever(
    scene: Scene,
) -> None:
    made = scene.fleet
    await made.apply_everywhere("every")
    await made.until(lambda: all("every" in "".join(made.served_by(n)) for n in made.engines))
    made.behaviour.loads_go_on.clear()
    await made.add("engine-3")
    await made.until(lambda: made.reasons("engine-3"))
    made.behaviour.loads_go_on.set()
    await made.until(lambda: warm(made, "engine-3"))
    first = next(each for each in made.said if each.pod == "engine-3")
    assert (first.status, first.reason) == ("False", "Warming")
    assert f"{made.namespace}/every" in made.served_by("engine-3")
    for name in ("engine-0", "engine-1", "engine-2"):
        assert made.reasons(name)[-1] == "Warm", "what comes later takes no engine out"

    made.behaviour.refuse_loads[f"{made.namespace}/every"] = "EngineRejected"
    await made.set_pool(warm={"timeoutSeconds": 2})
    await made.add("engine-4")
    await made.until(lambda: made.reasons("engine-4")[-1:] == ["WarmTimedOut"])
    last = next(each for each in reversed(made.said) if each.pod == "engine-4")
    assert (last.status, "every" in last.message) == ("True", True)


async def test_what_an_engine_refuses_again_after_a_restart_is_waited_for_no_longer(
    scene: Scene,
) -> None:
    made = scene.fleet
    made.behaviour.refuse_loads[f"{made.namespace}/wrong"] = "InvalidAdapter"
    await made.apply_everywhere("wrong")
    async with asyncio.timeout(60):
        while "InvalidAdapter" not in str(await made.status_of("wrong")):
            await asyncio.sleep(0.1)
    made.behaviour.restore_seconds = 0.5
    before = len(made.reasons("engine-1"))
    made.engines["engine-1"].restart_engine()
    seconds = 30  # the next look at an adapter for which nothing happens comes after a minute
    await made.until(lambda: made.reasons("engine-1")[before:][-1:] == ["Warm"], seconds)


async def test_engines_are_recycled_one_after_the_other_across_a_restart_of_the_operator(
    scene: Scene,
) -> None:
    made = scene.fleet
    made.behaviour.restore_seconds = 0.1
    stagings = made.books.stagings
    for engine in made.engines.values():
        engine.loaded_before(1000)
    begun = len(made.said)
    await made.set_pool(recycle={"maxLoads": 900, "drainSeconds": 1, "minReadyEngines": 2})
    await made.until(lambda: any(engine.restarts for engine in made.engines.values()))
    scene.operator.process.popen.kill()
    scene.operator.process.popen.wait()
    scene.operator = scene.start()
    names = sorted(made.engines)
    await made.until(lambda: all(made.engines[n].restarts for n in names) and all_warm(made), 120)
    async with asyncio.timeout(60):
        while (await made.pool_status()).get("recycles") != 3:
            await asyncio.sleep(0.2)

    assert [len(made.engines[name].restarts) for name in names] == [1, 1, 1]
    out: set[str] = set()
    for each in made.said[begun:]:
        (out.discard if each.status == "True" else out.add)(each.pod)
        assert len(out) <= 1, f"{each.pod} while {out} take no traffic"
    for name in names:
        assert "Recycling" in made.reasons(name)
    status = await made.pool_status()
    assert "recycling" not in status
    assert "1000 loads are more than 900" in status["lastRecycle"]
    assert made.books.stagings == stagings, "all came back from the arenas"


def all_warm(fleet: GatedFleet) -> bool:
    return all(warm(fleet, name) for name in fleet.engines)


async def test_no_order_reaches_a_pod_that_has_the_address_of_another(
    scene: Scene,
) -> None:
    made = scene.fleet
    there = made.served_by("engine-0")
    address = made.engines["engine-0"].address.partition(":")[0]
    await made.engines["engine-0"].kill()
    # Its pod's end is not known yet when another pod has its address, and a sidecar there answers.
    await made.add("engine-9", address)
    await asyncio.gather(*(made.apply(f"a-{number}", 2) for number in range(6)))
    async with asyncio.timeout(60):
        while "expected" not in await made.trouble_of("engine-0"):  # another pod's UID
            await asyncio.sleep(0.1)
    await made.end("engine-0")
    await made.settled(60)
    served = frozenset().union(*(made.served_by(name) for name in made.engines))
    assert there <= served
