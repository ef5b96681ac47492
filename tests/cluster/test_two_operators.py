"""Two operators at once on a real API server, with simulated engines: who acts, and who takes over."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from localstack import LocalStack
from resource_builders import adapter, path, pool
from simulated_engine import Behaviour
from simulated_fleet import SimulatedFleet
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kube_rest import KubeRest
    from localcluster import LocalCluster
    from localstack import Operator

SECONDS = 120
"""Bound on each step; they take a few."""
LEASE_SECONDS = 5
"""Who stalls for longer loses its lease: a busy machine must not do that to one that runs."""


class Replicas:
    """Operators that share the work of one namespace."""

    def __init__(
        self, cluster: LocalCluster, kube: KubeRest, stack: LocalStack, fleet: SimulatedFleet
    ) -> None:
        self.cluster, self.kube, self.stack, self.fleet = cluster, kube, stack, fleet
        self.running: dict[str, Operator] = {}

    def start(self, name: str, *, shards: int = 1) -> Operator:
        operator = self.stack.start_operator(
            self.cluster.kubeconfig,
            LORAFLEET_NAMESPACES=self.fleet.namespace,
            LORAFLEET_VOLUME_ROOT=str(self.fleet.root),
            LORAFLEET_RESYNC_SECONDS="1",
            LORAFLEET_LEASE_NAMESPACE=self.fleet.namespace,
            LORAFLEET_LEASE_SECONDS=str(LEASE_SECONDS),
            LORAFLEET_SHARDS=str(shards),
            LORAFLEET_IDENTITY=name,
        )
        self.running[name] = operator
        return operator

    def signal(self, name: str, number: signal.Signals) -> None:
        os.kill(self.running[name].process.pid, number)

    async def end(self, name: str, number: signal.Signals) -> None:
        """End one; the engines, which live in this process, go on meanwhile."""
        self.signal(name, number)
        await asyncio.to_thread(self.running.pop(name).process.popen.wait, SECONDS)

    def leases(self) -> list[dict[str, Any]]:
        place = f"/apis/coordination.k8s.io/v1/namespaces/{self.fleet.namespace}/leases"
        found: list[dict[str, Any]] = self.kube.get(place)["items"]
        return sorted(found, key=lambda item: item["metadata"]["name"])

    def holders(self) -> list[str]:
        return [item["spec"]["holderIdentity"] for item in self.leases()]

    def held(self, name: str) -> int:
        """Return how many shards the operator says that it holds."""
        text = httpx.get(self.running[name].metrics_url, timeout=SECONDS).text
        line = "lorafleet_operator_shards_held "
        return int(float(text[text.index("\n" + line) + 1 + len(line) :].split("\n", 1)[0]))


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[LocalStack]:
    with LocalStack(tmp_path) as stack:
        yield stack


async def test_of_two_operators_one_acts_and_the_other_takes_over_without_a_word(
    cluster: LocalCluster, kube: KubeRest, namespace: str, tmp_path: Path, stack: LocalStack
) -> None:
    async with SimulatedFleet(cluster.kubeconfig, tmp_path, namespace, engines=4) as fleet:
        replicas = Replicas(cluster, kube, stack, fleet)
        names = [f"a-{number}" for number in range(20)]
        await asyncio.gather(*(fleet.apply(name) for name in names))
        start = await fleet.writes()
        replicas.start("first")
        await until(lambda: replicas.holders() == ["first"])
        await asyncio.to_thread(replicas.start("second").wait)
        await fleet.settled(SECONDS)
        cold = await fleet.quiet() - start
        assert cold["adapter status"] == len(names), "one status each: one of them writes"
        assert cold["finalizers"] == len(names)
        assert (replicas.held("first"), replicas.held("second")) == (1, 0)
        orders = fleet.books.orders

        await replicas.end("first", signal.SIGKILL)
        await until(lambda: replicas.holders() == ["second"])
        settled = await fleet.quiet()
        await asyncio.sleep(2.0)  # a resync of everything
        assert await fleet.writes() == settled == start + cold, "nothing had changed"
        assert fleet.books.orders == orders
        assert replicas.held("second") == 1
        await fleet.apply("a-0", 2)
        await fleet.settled(SECONDS)

        # What is given up is free at once; a deletion that nobody saw is seen through later.
        await replicas.end("second", signal.SIGTERM)
        assert replicas.holders() == [""]
        await fleet.delete("a-1")
        await fleet.apply("a-20")
        replicas.start("third")
        await fleet.settled(SECONDS)
        await until(lambda: not any(e.adapter.endswith("/a-1") for e in _loaded(fleet)))
        assert replicas.holders() == ["third"]


def _loaded(fleet: SimulatedFleet) -> list[Any]:
    return [entry for engine in fleet.engines.values() for entry in engine.loaded.values()]


async def test_who_was_stopped_for_longer_than_its_lease_does_nothing_when_it_wakes(
    cluster: LocalCluster, kube: KubeRest, namespace: str, tmp_path: Path, stack: LocalStack
) -> None:
    behaviour = Behaviour(load_seconds=0.5)
    fleet = SimulatedFleet(cluster.kubeconfig, tmp_path, namespace, engines=3, behaviour=behaviour)
    async with fleet:
        replicas = Replicas(cluster, kube, stack, fleet)
        names = [f"a-{number}" for number in range(10)]
        replicas.start("stopped")
        await until(lambda: replicas.holders() == ["stopped"])
        await asyncio.to_thread(replicas.start("second").wait)
        await asyncio.gather(*(fleet.apply(name) for name in names))
        await until(lambda: fleet.books.loads > 0)
        replicas.signal("stopped", signal.SIGSTOP)  # in the middle of many passes
        await until(lambda: replicas.holders() == ["second"])
        behaviour.load_seconds = 0.0
        await fleet.settled(SECONDS)
        for name in names[:5]:
            await fleet.apply(name, 2)
        await fleet.settled(SECONDS)
        writes = await fleet.quiet()
        orders = fleet.books.orders
        versions = _versions(kube, namespace)

        replicas.signal("stopped", signal.SIGCONT)
        await until(lambda: replicas.held("stopped") == 0)
        await asyncio.sleep(2.0)
        assert await fleet.writes() == writes
        assert fleet.books.orders == orders
        assert _versions(kube, namespace) == versions
        assert fleet.unsettled() == []
        # And takes part again.
        await replicas.end("second", signal.SIGTERM)
        await fleet.apply("a-10")
        await fleet.settled(SECONDS)
        assert replicas.holders() == ["stopped"]


def _versions(kube: KubeRest, namespace: str) -> dict[str, str]:
    items = kube.get(path("LoRAAdapter", namespace))["items"]
    return {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in items}


async def test_shards_are_shared_evenly_by_who_is_there(
    cluster: LocalCluster, kube: KubeRest, namespace: str, tmp_path: Path, stack: LocalStack
) -> None:
    async with SimulatedFleet(cluster.kubeconfig, tmp_path, namespace, engines=3) as fleet:
        replicas = Replicas(cluster, kube, stack, fleet)
        pools = [f"pool-{number}" for number in range(8)]
        for name in pools:
            _create_pool(kube, namespace, name)
        names = [f"a-{number}" for number in range(10)]
        await asyncio.gather(*(fleet.apply(name) for name in names))
        replicas.start("first", shards=4)
        await until(lambda: replicas.holders() == ["first"] * 4)
        await fleet.settled(SECONDS)
        replicas.start("second", shards=4)
        await until(lambda: sorted(replicas.holders()) == ["first"] * 2 + ["second"] * 2)
        await until(lambda: (replicas.held("first"), replicas.held("second")) == (2, 2))
        writes = await fleet.quiet()
        holders = replicas.holders()
        await asyncio.sleep(2.0)
        assert replicas.holders() == holders, "who is even stays so"
        assert await fleet.writes() == writes
        # Each pool is somebody's: also those that come, and adapters of pools that do not exist.
        late = [f"late-{number}" for number in range(4)]
        for name in late:
            _create_pool(kube, namespace, name)
            source = {"persistentVolumeClaim": {"claimName": "claim", "path": "a-0/1"}}
            lost = adapter(f"lost-{name}", poolRef={"name": f"none-{name}"}, source=source)
            kube.create(path("LoRAAdapter", namespace), lost)
        await until(lambda: all(_reasons(kube, "EnginePool", namespace, n) for n in pools + late))
        await until(
            lambda: all(
                "PoolNotFound" in _reasons(kube, "LoRAAdapter", namespace, f"lost-{name}")
                for name in late
            )
        )
        await replicas.end("first", signal.SIGKILL)
        await until(lambda: replicas.holders() == ["second"] * 4)
        # Another number of shards waits for the end of this one.
        await asyncio.to_thread(replicas.start("third", shards=2).wait)
        await asyncio.sleep(LEASE_SECONDS)
        assert replicas.holders() == ["second"] * 4
        assert replicas.held("third") == 0
        await replicas.end("second", signal.SIGTERM)
        await until(lambda: replicas.holders()[:2] == ["third"] * 2)
        await fleet.apply("a-10")
        await fleet.settled(SECONDS)


def _create_pool(kube: KubeRest, namespace: str, name: str) -> None:
    selector = {"matchLabels": {"app": name}}
    kube.create(path("EnginePool", namespace), pool(name, selector=selector))


def _reasons(kube: KubeRest, kind: str, namespace: str, name: str) -> set[str]:
    status = kube.get(path(kind, namespace, name)).get("status") or {}
    return {condition["reason"] for condition in status.get("conditions", ())}
