"""A pool that is changed under its adapters: taken away and given back, by selector, deletion and the
labels of namespaces. No resync helps."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from kube_rest import KubeRest
from localstack import LocalStack
from resource_builders import path
from simulated_fleet import BASE, POOL, SimulatedFleet
from waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from localcluster import LocalCluster

ENGINES, SECONDS = 3, 60
SELECTOR = {"matchLabels": {"app": "simulated"}}
NOBODY = {"matchLabels": {"app": "nobody"}}


class Scene:
    """A fleet whose adapters are for two engines each, and what people do to its pool."""

    def __init__(self, kube: KubeRest, fleet: SimulatedFleet) -> None:
        self.kube, self.fleet = kube, fleet
        self.pool = path("EnginePool", fleet.namespace, POOL)

    def reason(self, name: str) -> str:
        """Return the reason of Ready, "" while it is not about the spec as it was last written."""
        applied = self.fleet.adapters[name]
        conditions = applied.status.get("conditions") or ()
        ready = [each for each in conditions if each["type"] == "Ready"]
        new = [e for e in ready if e.get("observedGeneration", 0) >= applied.generation > 0]
        return new[0]["reason"] if new else ""

    async def all_say(self, reason: str) -> None:
        await until(lambda: all(self.reason(name) == reason for name in self.fleet.adapters))

    def served(self) -> list[tuple[str, str]]:
        """Return what is served where."""
        return sorted(
            (engine, entry.served_name)
            for engine, each in self.fleet.engines.items()
            for entry in each.loaded.values()
            if entry.published
        )

    def create_pool(self, **spec: Any) -> None:
        body = {"selector": SELECTOR, "baseModel": BASE, **spec}
        kind = {"apiVersion": "lorafleet.dev/v1alpha1", "kind": "EnginePool"}
        made = {**kind, "metadata": {"name": POOL}, "spec": body}
        self.kube.create(path("EnginePool", self.fleet.namespace), made)


@asynccontextmanager
async def ready_fleet(
    cluster: LocalCluster, kube: KubeRest, namespace: str, directory: Path, **settings: str
) -> AsyncIterator[Scene]:
    """Three engines, four adapters, Ready, and an operator for them."""
    fleet = SimulatedFleet(cluster.kubeconfig, directory, namespace, engines=ENGINES, replicas=2)
    with LocalStack(directory) as stack:
        async with fleet:
            stack.start_operator(
                cluster.kubeconfig,
                LORAFLEET_VOLUME_ROOT=str(fleet.root),
                LORAFLEET_RESYNC_SECONDS="3600",
                **settings,
            )
            for number in range(4):
                await fleet.apply(f"a-{number}")
            await fleet.settled(SECONDS)
            await fleet.quiet()
            yield Scene(kube, fleet)


@pytest.fixture
async def scene(
    cluster: LocalCluster, kube: KubeRest, namespace: str, tmp_path: Path
) -> AsyncIterator[Scene]:
    names = {"LORAFLEET_NAMESPACES": namespace}
    async with ready_fleet(cluster, kube, namespace, tmp_path, **names) as found:
        yield found


async def test_a_selector_that_selects_nobody_ends_nothing_and_its_way_back_loads_nothing(
    scene: Scene,
) -> None:
    before, orders = scene.served(), scene.fleet.books.orders
    scene.kube.merge(scene.pool, {"spec": {"selector": NOBODY}})
    await scene.all_say("NoMatchingEngines")
    assert scene.served() == before
    scene.kube.merge(scene.pool, {"spec": {"selector": SELECTOR}})
    await scene.all_say("Ready")
    assert scene.served() == before
    assert scene.fleet.books.orders == orders


async def test_a_selector_that_moves_to_other_engines_moves_the_adapters_and_then_lets_go(
    scene: Scene,
) -> None:
    fleet, old = scene.fleet, set(scene.fleet.engines)
    pods = f"/api/v1/namespaces/{fleet.namespace}/pods"
    for number in range(2):
        await fleet.add_engine(f"new-{number}")
    for name in fleet.engines.keys() - old:
        scene.kube.merge(f"{pods}/{name}", {"metadata": {"labels": {"stage": "new"}}})
    scene.kube.merge(scene.pool, {"spec": {"selector": {"matchLabels": {"stage": "new"}}}})
    await until(lambda: {engine for engine, _ in scene.served()} == {"new-0", "new-1"})
    await fleet.settled(SECONDS)
    # Where it has left, a deletion is seen through as well as where it is.
    await fleet.delete("a-0")
    await until(lambda: not any("a-0" in name for _, name in scene.served()))


async def test_a_pool_that_is_deleted_and_made_again_finds_everything_as_it_was(
    scene: Scene,
) -> None:
    fleet, before = scene.fleet, scene.served()
    orders = fleet.books.orders
    scene.kube.delete(scene.pool)
    await scene.all_say("PoolNotFound")
    assert (scene.served(), fleet.books.orders) == (before, orders)
    # Deletions go through meanwhile.
    await fleet.delete("a-0")
    await until(lambda: not any("a-0" in name for _, name in scene.served()))
    before, orders = scene.served(), fleet.books.orders
    scene.create_pool()
    await scene.all_say("Ready")
    await fleet.settled(SECONDS)
    assert (scene.served(), fleet.books.orders) == (before, orders)


async def test_a_namespace_that_changes_its_tenant_loses_and_gets_places_at_once(
    mortal: LocalCluster, tmp_path: Path
) -> None:
    """An operator for the whole cluster: it may read the labels of namespaces."""
    with KubeRest(mortal.kubeconfig) as kube:
        async with ready_fleet(mortal, kube, "changes-tenant", tmp_path) as scene:
            await _change_tenant(scene)


async def _change_tenant(scene: Scene) -> None:
    fleet, namespace = scene.fleet, f"/api/v1/namespaces/{scene.fleet.namespace}"
    scene.kube.merge(namespace, {"metadata": {"labels": {"team": "search"}}})
    selector = {"matchLabels": {"team": "search"}}
    tenants = [
        {"name": "search", "namespaceSelector": selector, "quota": {"adapters": 10}},
        {"name": "*", "quota": {"adapters": 1}},
    ]
    scene.kube.merge(scene.pool, {"spec": {"tenants": tenants}})

    def tenant() -> list[tuple[str, int]]:
        found = scene.kube.get(scene.pool)["status"].get("tenants") or ()
        return [(each.get("name", ""), each["adapters"]) for each in found]

    await until(lambda: tenant() == [("search", 4)])
    await scene.all_say("Ready")
    await until(lambda: len(scene.served()) == 8)
    scene.kube.merge(namespace, {"metadata": {"labels": {"team": None}}})
    await until(lambda: len(scene.served()) == 2)
    await until(
        lambda: (
            sorted(scene.reason(name) for name in fleet.adapters)
            == ["QuotaExceeded"] * 3 + ["Ready"]
        )
    )
    scene.kube.merge(namespace, {"metadata": {"labels": {"team": "search"}}})
    await scene.all_say("Ready")
    await until(lambda: len(scene.served()) == 8)


async def test_a_name_that_is_freed_while_several_want_it_is_one_adapters_alone(
    scene: Scene,
) -> None:
    await scene.fleet.apply("owner", servedName="wanted")
    await scene.all_say("Ready")
    owner = "owner"
    for number in range(4):
        owner = await _freed(scene, owner, number)


async def _freed(scene: Scene, owner: str, number: int) -> str:
    """Free the name while one waits for it, one is renamed to it and one is new; return whose it is."""
    fleet = scene.fleet
    waits, renamed, new = rivals = [f"waits-{number}", f"a-{number}", f"new-{number}"]
    await fleet.apply(waits, servedName="wanted")
    await until(lambda: scene.reason(waits) == "NameTaken")
    await asyncio.gather(
        fleet.delete(owner),
        fleet.apply(renamed, servedName="wanted"),
        fleet.apply(new, servedName="wanted"),
    )
    await until(lambda: sorted(map(scene.reason, rivals)) == ["NameTaken", "NameTaken", "Ready"])
    (owner,) = [name for name in rivals if scene.reason(name) == "Ready"]
    entries = [e for engine in fleet.engines.values() for e in engine.loaded.values()]
    owners = {entry.adapter for entry in entries if entry.served_name == "wanted"}
    assert owners == {f"{fleet.namespace}/{owner}"}
    for name in rivals:
        if name != owner:
            await fleet.delete(name)
    return owner
