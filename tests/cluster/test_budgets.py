"""PodDisruptionBudgets of engine pods: what an eviction that is refused does, and what one waits for.

The API server refuses by what a budget's status says; the controller that writes it, and the kubelet
that says which pods are Ready, are played here.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from gated_fleet import GATE, GatedFleet
from kube_rest import Refused
from localstack import LocalStack
from simulated_engine import Behaviour

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from kube_rest import KubeRest
    from localcluster import LocalCluster

DRAIN, SECONDS = "lorafleet.dev/drain", 60
ENGINES = [f"engine-{number}" for number in range(3)]
NAMES = [f"a-{number}" for number in range(6)]


class Budgeted(GatedFleet):
    """Three engines with the gate and a budget; six adapters with two replicas each, Ready."""

    kube: KubeRest

    def allow(self, least: int) -> None:
        """Make the budget say that so many engine pods have to be Ready."""
        place = f"/apis/policy/v1/namespaces/{self.namespace}/poddisruptionbudgets"
        spec = {"minAvailable": least, "selector": {"matchLabels": {"app": "simulated"}}}
        if not self.kube.get(place)["items"]:
            made = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "spec": spec}
            self.kube.create(place, {**made, "metadata": {"name": "engines"}})
        self.least = least
        self.budget = f"{place}/engines"
        self.kube.merge(self.budget, {"spec": spec})
        self.count()

    def count(self) -> dict[str, bool]:
        """Say which pods are Ready, by their gates, and what the budget allows; return the former."""
        ready = {}
        for pod in self.kube.get(self.pods)["items"]:
            name, conditions = pod["metadata"]["name"], pod["status"].get("conditions") or []
            said = {each["type"]: each["status"] for each in conditions}
            ready[name] = said.get(GATE) == "True"
            others = [each for each in conditions if each["type"] != "Ready"]
            now = {"type": "Ready", "status": "True" if ready[name] else "False"}
            if said.get("Ready") != now["status"]:
                change = {"status": {"conditions": [*others, now]}}
                self.kube.merge(f"{self.pods}/{name}/status", change)
        healthy = sum(ready.values())
        status = {
            "observedGeneration": self.kube.get(self.budget)["metadata"]["generation"],
            "disruptionsAllowed": max(0, healthy - self.least),
            "currentHealthy": healthy,
            "desiredHealthy": self.least,
            "expectedPods": len(ready),
        }
        self.kube.merge(f"{self.budget}/status", {"status": status})
        return ready

    def evicted(self, name: str) -> bool:
        """Try to evict a pod; return False if the budget does not allow it."""
        body: dict[str, Any] = {"apiVersion": "policy/v1", "kind": "Eviction"}
        body |= {"metadata": {"name": name}, "deleteOptions": {"gracePeriodSeconds": 60}}
        try:
            self.kube.create(f"{self.pods}/{name}/eviction", body)
        except Refused as refusal:
            if refusal.status != 429:
                raise
            return False
        return True


@pytest.fixture
async def fleet(
    cluster: LocalCluster, kube: KubeRest, namespace: str, tmp_path: Path
) -> AsyncIterator[Budgeted]:
    made = Budgeted(cluster.kubeconfig, tmp_path, namespace, replicas=2, behaviour=Behaviour())
    made.kube = kube
    with LocalStack(tmp_path) as stack:
        async with made:
            await asyncio.gather(*(made.apply(name) for name in NAMES))
            await asyncio.gather(*(made.add(name) for name in ENGINES))
            stack.start_operator(
                cluster.kubeconfig,
                LORAFLEET_NAMESPACES=namespace,
                LORAFLEET_VOLUME_ROOT=str(made.root),
                LORAFLEET_RESYNC_SECONDS="3600",
            )
            await made.settled(SECONDS)
            await made.until(lambda: all(says(made, name, "Warm") for name in ENGINES))
            yield made


def serves(fleet: Budgeted, engine: str, name: str) -> bool:
    return f"{fleet.namespace}/{name}" in fleet.served_by(engine)


def says(fleet: Budgeted, name: str, reason: str) -> bool:
    return fleet.reasons(name)[-1:] == [reason]


async def test_an_eviction_that_a_budget_refuses_changes_nothing(fleet: Budgeted) -> None:
    fleet.allow(3)
    writes, orders, said = await fleet.quiet(), fleet.books.orders, list(fleet.said)
    for _ in range(5):  # as kubectl drain does, every five seconds
        assert not fleet.evicted(ENGINES[0])
    assert await fleet.quiet() == writes
    assert (fleet.books.orders, fleet.said) == (orders, said)
    assert all(fleet.count().values()), "it takes traffic"


async def test_a_drained_engine_that_may_not_go_waits_out_of_traffic_and_may_come_back(
    fleet: Budgeted,
) -> None:
    fleet.allow(3)
    await fleet.label(ENGINES[0], DRAIN, "true")
    await fleet.until(lambda: says(fleet, ENGINES[0], "Drained"))
    assert fleet.count() == {ENGINES[0]: False, ENGINES[1]: True, ENGINES[2]: True}
    assert not fleet.evicted(ENGINES[0]), "two are Ready, and three have to be"
    writes, orders = await fleet.quiet(), fleet.books.orders
    assert not fleet.evicted(ENGINES[0])
    assert await fleet.quiet() == writes
    assert fleet.books.orders == orders
    status = await fleet.pool_status()
    engine = next(each for each in status["engines"] if each["podName"] == ENGINES[0])
    assert engine["traffic"] == "Drained"
    assert "other engines have what it served" in engine["message"]
    await fleet.label(ENGINES[0], DRAIN, None)
    await fleet.until(lambda: says(fleet, ENGINES[0], "Warm"))
    await fleet.settled(SECONDS)
    assert all(fleet.count().values())


async def test_a_budget_lets_the_next_engine_go_when_the_place_of_the_last_one_is_taken(
    fleet: Budgeted,
) -> None:
    await fleet.apply_everywhere("everywhere")
    await fleet.until(lambda: all(serves(fleet, name, "everywhere") for name in ENGINES))
    fleet.allow(2)
    await fleet.label(ENGINES[0], DRAIN, "true")
    await fleet.until(lambda: says(fleet, ENGINES[0], "Drained"))
    fleet.count()
    assert not fleet.evicted(ENGINES[1]), "it is one of two that are left"
    assert fleet.evicted(ENGINES[0]), "it is not Ready: nobody misses it"
    await fleet.until(lambda: says(fleet, ENGINES[0], "Deleting"))
    await fleet.end(ENGINES[0])
    fleet.behaviour.loads_go_on.clear()
    await fleet.add("engine-3")
    await fleet.until(lambda: says(fleet, "engine-3", "Warming"))
    assert not fleet.count()["engine-3"]
    assert not fleet.evicted(ENGINES[1]), "the new one is not warm yet"
    fleet.behaviour.loads_go_on.set()
    await fleet.until(lambda: says(fleet, "engine-3", "Warm"))
    fleet.count()
    assert fleet.evicted(ENGINES[1])
    await fleet.until(lambda: says(fleet, ENGINES[1], "Deleting"))
    await fleet.settled_on({ENGINES[2], "engine-3"}, SECONDS)
    await fleet.end(ENGINES[1])
    await fleet.settled(SECONDS)
