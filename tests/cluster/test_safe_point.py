"""Safe points: trainers say when engines that are due are recycled; a real API server says who may."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from gated_fleet import GATE, GatedFleet
from localstack import LocalStack
from lorafleet.errors import (
    AccessDenied,
    AdapterRejected,
    InvalidAdapter,
    PathNotAllowed,
    SourceNotFound,
)
from lorafleet.push import AsyncFleet, NotServed
from processes import free_port
from pushing import RBAC, SAFE_POINT_RULE, account, token
from simulated_engine import Behaviour
from simulated_fleet import BASE, POOL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from kube_rest import KubeRest
    from localcluster import LocalCluster
    from lorafleet.push import SafePoint

GET = {"apiGroups": ["lorafleet.dev"], "resources": ["loraadapters"], "verbs": ["get"]}
RULE = {"maxLoads": 900, "when": "SafePoint", "drainSeconds": 600, "minReadyEngines": 2}
GIB, MIB = 1 << 30, 1 << 20


class Scene:
    """Three engines and an operator that takes pushes; accounts `trainer` and `other` that may."""

    def __init__(self, fleet: GatedFleet, kube: KubeRest, address: str, start: Any) -> None:
        self.fleet, self.kube, self.address, self.start = fleet, kube, address, start
        self.operator = start()

    def client(self, name: str = "trainer", *, of: str = "", audience: str = "lorafleet") -> Any:
        namespace = of or self.fleet.namespace
        text = token(self.kube, namespace, name, audience)
        return AsyncFleet(self.address, namespace, token=lambda: text)

    async def open(self, name: str = "trainer", timeout: float = 240) -> SafePoint:
        async with self.client(name) as fleet:
            found: SafePoint = await fleet.safe_point("a-0", timeout)
            return found

    async def due(self, *numbers: int, **rule: Any) -> None:
        """Let these engines be due, and wait until the pool says that they wait for a safe point."""
        for number in numbers:
            self.fleet.engines[f"engine-{number}"].loaded_before(1000)
        await self.fleet.set_pool(recycle={**RULE, **rule})
        names = {f"engine-{number}" for number in numbers}
        await self.said(lambda status: set(due(status)) == names)

    async def said(self, done: Any, seconds: float = 120) -> dict[str, Any]:
        """Wait until the pool's status is as it should be, and return it."""
        async with asyncio.timeout(seconds):
            while not done(status := await self.fleet.pool_status()):
                await asyncio.sleep(0.1)
        return status

    def restarts(self) -> list[int]:
        return [len(engine.restarts) for _, engine in sorted(self.fleet.engines.items())]

    def warm(self) -> int:
        """Return how many pods have the condition that lets them take traffic, as of now."""
        pods = self.kube.get(self.fleet.pods)["items"]
        conditions = [each for pod in pods for each in pod["status"].get("conditions", ())]
        return sum((each["type"], each["status"]) == (GATE, "True") for each in conditions)

    def in_flight(self, number: int) -> None:
        """Let vLLM of an engine answer so many requests; it ends only when there are none."""
        engine = self.fleet.engines["engine-0"]
        for entry in engine.loaded.values():
            entry.in_flight = number
        engine.loaded_before(engine.load_count)

    def stop(self) -> None:
        self.operator.process.popen.kill()
        self.operator.process.popen.wait()

    def events(self, reason: str, namespace: str = "") -> list[str]:
        place = f"/api/v1/namespaces/{namespace or self.fleet.namespace}/events"
        found = self.kube.get(place)["items"]
        return [each["message"] for each in found if each["reason"] == reason]


@pytest.fixture
async def scene(
    cluster: LocalCluster, kube: KubeRest, namespace: str, tmp_path: Path
) -> AsyncIterator[Scene]:
    behaviour = Behaviour(growth_per_load=MIB)
    made = GatedFleet(cluster.kubeconfig, tmp_path, namespace, replicas=2, behaviour=behaviour)
    address = f"127.0.0.1:{free_port()}"
    with LocalStack(tmp_path) as stack:
        async with made:
            await asyncio.gather(*(made.apply(f"a-{number}") for number in range(6)))
            await asyncio.gather(*(made.add(f"engine-{number}") for number in range(3)))
            for name in ("trainer", "other"):
                account(kube, namespace, name, [GET, SAFE_POINT_RULE])
            start = partial(
                stack.start_operator,
                cluster.kubeconfig,
                LORAFLEET_NAMESPACES=namespace,
                LORAFLEET_VOLUME_ROOT=str(made.root),
                LORAFLEET_PUSH_LISTEN=address,
                LORAFLEET_PUSH_DIR=str(tmp_path / "pushed"),
            )
            found = Scene(made, kube, address, start)
            await made.settled(60)
            await made.until(lambda: all_warm(made), 60)
            yield found


def all_warm(fleet: GatedFleet) -> bool:
    return all(fleet.reasons(name)[-1:] == ["Warm"] for name in fleet.engines)


def may_open(kube: KubeRest, namespace: str, user: str) -> bool:
    """Return whether the API server has heard of the account's right to open safe points."""
    asked = {
        "group": "lorafleet.dev",
        "resource": "enginepools",
        "subresource": "safepoint",
        "verb": "create",
        "namespace": namespace,
        "name": POOL,
    }
    body = {"spec": {"user": user, "resourceAttributes": asked}}
    made = kube.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", body)
    return bool(made["status"]["allowed"])


def due(status: dict[str, Any]) -> dict[str, str]:
    """Return why engines are due, by pod."""
    engines = status.get("engines", ())
    return {e["podName"]: e["recycleDue"] for e in engines if e.get("recycleDue")}


def waits(status: dict[str, Any]) -> bool:
    return "waits for a safe point" in status.get("recycleMessage", "")


async def test_engines_that_are_due_wait_for_a_trainer_and_are_recycled_one_by_one(
    scene: Scene,
) -> None:
    made = scene.fleet
    await scene.due(0, 2)
    status = await made.pool_status()
    line = "1000 loads are more than 900"
    assert due(status) == {"engine-0": line, "engine-2": line}
    assert status["recycleMessage"] == f"engine-0: {line}; waits for a safe point (and 1 more)"
    first = status["engines"][0]
    assert (first["podName"], first["hostGrowthPerLoad"]) == ("engine-0", MIB)
    assert datetime.fromisoformat(first["recycleDueSince"]) <= datetime.now(UTC)
    assert scene.restarts() == [0, 0, 0]

    begun = len(made.said)
    found = await scene.open()
    assert scene.restarts() == [1, 0, 1]
    assert scene.warm() == 3, "the warm set is back"
    assert [each.pod for each in found.recycled] == ["engine-0", "engine-2"]
    for each in found.recycled:
        assert (each.reason, each.loads, each.growth_per_load) == (line, 1000, MIB)
        assert each.host_bytes_before == GIB + 1000 * MIB
        assert GIB <= each.host_bytes_after < GIB + 100 * MIB
    out: set[str] = set()
    for said in made.said[begun:]:
        (out.discard if said.status == "True" else out.add)(said.pod)
        assert len(out) <= 1, f"{said.pod} while {out} take no traffic"
    status = await scene.said(lambda status: "safePoint" not in status)
    assert (status["recycles"], due(status)) == (2, {})
    (opened,) = scene.events("SafePointOpened")
    assert f"system:serviceaccount:{made.namespace}:trainer" in opened

    again = await scene.open()
    assert (again.recycled, again.message) == ((), "no engine is due")


async def test_a_trainer_that_goes_lets_one_be_finished_and_no_other_be_begun(
    scene: Scene,
) -> None:
    await scene.due(0, 1, 2)
    scene.in_flight(1)
    opened = [asyncio.create_task(scene.open(name)) for name in ("trainer", "other")]
    status = await scene.said(lambda status: "recycling" in status)
    assert status["recycling"]["podName"] == "engine-0"
    assert len(status["safePoint"]["openedBy"]) == 2 or await scene.said(
        lambda status: len(status["safePoint"]["openedBy"]) == 2
    )
    opened[0].cancel()
    await scene.said(lambda status: len(status["safePoint"]["openedBy"]) == 1)
    opened[1].cancel()
    await scene.said(lambda status: "safePoint" not in status)
    assert scene.restarts() == [0, 0, 0]

    scene.in_flight(0)
    status = await scene.said(waits)
    assert status["recycles"] == 1
    assert status["recycleMessage"].endswith("waits for a safe point (and 1 more)")
    assert scene.restarts() == [1, 0, 0]
    assert len(scene.events("SafePointClosed")) == 1, "the first that went closed nothing"


async def test_a_safe_point_is_not_longer_than_the_trainer_asked_for(scene: Scene) -> None:
    await scene.due(0, 1)
    scene.in_flight(1)
    with pytest.raises(NotServed, match="not over after 3 s"):
        await scene.open(timeout=3)
    await scene.said(lambda status: "safePoint" not in status)
    assert scene.restarts() == [0, 0, 0]


async def test_a_safe_point_outlasts_an_operator_that_is_killed_in_it(scene: Scene) -> None:
    await scene.due(0, 1)
    scene.in_flight(1)
    opened = asyncio.create_task(scene.open())
    await scene.said(lambda status: "recycling" in status)
    scene.stop()
    scene.operator = scene.start()
    scene.in_flight(0)
    found = await opened
    assert [each.pod for each in found.recycled] == ["engine-0", "engine-1"]
    assert scene.restarts() == [1, 1, 0]


async def test_nobody_alive_holds_it_open_longer_than_its_time(scene: Scene) -> None:
    made = scene.fleet
    await scene.due(0, 1)
    scene.in_flight(1)
    opened = asyncio.create_task(scene.open())
    status = await scene.said(lambda status: "recycling" in status)
    scene.stop()
    opened.cancel()
    assert status["safePoint"]["openUntil"] > status["recycling"]["since"]
    place = f"/apis/lorafleet.dev/v1alpha1/namespaces/{made.namespace}/enginepools/{POOL}/status"
    past = {"openUntil": "2026-01-01T00:00:00Z"}
    scene.kube.merge(place, {"status": {"safePoint": past}})
    scene.operator = scene.start()
    scene.in_flight(0)
    status = await scene.said(waits)
    assert "safePoint" not in status
    assert status["recycles"] == 1
    assert scene.restarts() == [1, 0, 0]


async def test_a_pool_does_not_wait_for_a_trainer_for_ever(scene: Scene) -> None:
    await scene.due(1)
    assert scene.restarts() == [0, 0, 0]
    await scene.fleet.set_pool(recycle={**RULE, "maxWaitSeconds": 1})
    await scene.said(lambda status: status.get("recycles") == 1)
    assert scene.restarts() == [0, 1, 0]


async def test_who_may_not_is_refused_and_told(scene: Scene) -> None:
    made, kube, own = scene.fleet, scene.kube, scene.fleet.namespace
    await scene.due(0)
    account(kube, own, "pusher", [GET])
    away = f"{own}-b"
    kube.create("/api/v1/namespaces", {"metadata": {"name": away}})
    account(kube, away, "trainer", [GET, SAFE_POINT_RULE])
    source = {"push": {}}
    spec = {"baseModel": BASE, "poolRef": {"name": POOL, "namespace": own}, "source": source}
    body = {
        "apiVersion": "lorafleet.dev/v1alpha1",
        "kind": "LoRAAdapter",
        "metadata": {"name": "theirs"},
        "spec": spec,
    }
    kube.create(f"/apis/lorafleet.dev/v1alpha1/namespaces/{away}/loraadapters", body)
    right = f"may not create enginepools/safepoint in namespace {own}"
    for client, name, line in (
        (scene.client("pusher"), "a-0", f"{own}:pusher {right}"),
        (scene.client("trainer", of=away), "theirs", f"{away}:trainer {right}"),
        (scene.client(audience="elsewhere"), "a-0", "not valid for audience lorafleet"),
    ):
        async with client as fleet:
            with pytest.raises(AccessDenied, match=line):
                await fleet.safe_point(name)
    async with scene.client() as fleet:
        with pytest.raises(SourceNotFound, match=f"no LoRAAdapter {own}/nothing"):
            await fleet.safe_point("nothing")
        with pytest.raises(AdapterRejected, match="timeout_seconds is 90000, at most 86400"):
            await fleet.safe_point("a-0", 90_000)
        with pytest.raises(PathNotAllowed, match="is not a name"):
            await fleet.safe_point("../a-0")
        with pytest.raises(InvalidAdapter, match="name the adapter whose pool it is"):
            await fleet.safe_point()
    told = scene.events("SafePointRefused")
    assert sorted(each.split("account:")[-1] for each in told) == sorted(
        (
            f"{own}:pusher {right}",
            f"{away}:trainer {right}",
        )
    )
    assert any("not valid for audience" in each for each in scene.events("PushRefused"))
    assert scene.events("SafePointOpened") == []
    assert scene.restarts() == [0, 0, 0]

    # The pool's owner lets the trainer of the other namespace do it.
    binding = {
        "metadata": {"name": "away"},
        "subjects": [{"kind": "ServiceAccount", "name": "trainer", "namespace": away}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "trainer"},
    }
    kube.create(f"{RBAC}/namespaces/{own}/rolebindings", binding)
    await made.until(lambda: may_open(kube, own, f"system:serviceaccount:{away}:trainer"), 60)
    async with scene.client("trainer", of=away) as fleet:
        found = await fleet.safe_point("theirs", 240)
    assert [each.pod for each in found.recycled] == ["engine-0"]
    assert scene.warm() == 3
