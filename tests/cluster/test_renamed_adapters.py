"""Served names that change hands: by a swap, by a rotation, by a name that somebody waited for, and
by a grant that is withdrawn.

No resync and no look at a source helps: an operator that sleeps through a change would sleep until the
test fails.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from localstack import LocalStack
from resource_builders import grant, path
from simulated_fleet import SimulatedFleet
from waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from kube_rest import KubeRest
    from localcluster import LocalCluster

ENGINES, SECONDS = 2, 60


async def test_names_change_hands_in_whatever_order_they_are_renamed(
    cluster: LocalCluster, namespace: str, tmp_path: Path
) -> None:
    fleet = SimulatedFleet(
        cluster.kubeconfig, tmp_path, namespace, engines=ENGINES, replicas=ENGINES,
        poll_seconds=3600,
    )  # fmt: skip

    waiting: set[str] = set()

    def serve(**names: str) -> bool:
        """Return whether exactly these adapters are served, under these names, on each engine."""
        wanted = sorted((name, f"{namespace}/{key}") for key, name in names.items())
        return all(
            sorted((e.served_name, e.adapter) for e in engine.loaded.values()) == wanted
            for engine in fleet.engines.values()
        ) and all(fleet.adapters[key].ready_at is not None for key in names.keys() - waiting)

    async def served(**names: str) -> None:
        async with asyncio.timeout(SECONDS):
            while not serve(**names):
                await asyncio.sleep(0.05)

    async def rename(**names: str) -> None:
        for key, name in names.items():
            await fleet.apply(key, servedName=name)

    def loads() -> dict[tuple[str, str], int]:
        """Return by which load each name is served on each engine."""
        return {
            (name, entry.served_name): entry.lora_int_id
            for name, engine in fleet.engines.items()
            for entry in engine.loaded.values()
        }

    async def blocked(key: str) -> None:
        async with asyncio.timeout(SECONDS):
            while "NameTaken" not in str(fleet.adapters[key].status):
                await asyncio.sleep(0.05)

    settings = {
        "LORAFLEET_NAMESPACES": namespace,
        "LORAFLEET_VOLUME_ROOT": str(fleet.root),
        "LORAFLEET_RESYNC_SECONDS": "3600",
    }
    with LocalStack(tmp_path) as stack:
        async with fleet:
            operator = stack.start_operator(cluster.kubeconfig, **settings)
            await rename(p="one", q="two", r="three")
            await served(p="one", q="two", r="three")
            await rename(p="two", q="one")
            await served(p="two", q="one", r="three")
            await rename(p="three", q="two", r="one")
            await served(p="three", q="two", r="one")
            await asyncio.sleep(1.1)  # times of creation are whole seconds: this one is younger
            await fleet.apply("waits", servedName="two")
            await blocked("waits")
            await rename(q="four")
            await served(p="three", q="four", r="one", waits="two")
            # Whoever is renamed to a name that is served waits, however old: also for a new operator.
            await rename(p="two")
            await blocked("p")
            waiting.add("p")
            operator.process.kill()
            before = loads()
            stack.start_operator(cluster.kubeconfig, **settings)
            await fleet.apply("late", servedName="five")
            await served(p="three", q="four", r="one", waits="two", late="five")
            assert before == {key: loads()[key] for key in before}, "nobody was loaded again"
            await blocked("p")
            # The name of before is anybody's who asks for it.
            await fleet.apply("thief", servedName="three")
            await served(q="four", r="one", waits="two", late="five", thief="three")
            await fleet.delete("waits")
            waiting.clear()
            await served(p="two", q="four", r="one", late="five", thief="three")


async def test_a_name_of_before_ends_with_the_grant_for_it(
    cluster: LocalCluster, kube: KubeRest, namespace: str, system: str, tmp_path: Path
) -> None:
    fleet = SimulatedFleet(
        cluster.kubeconfig, tmp_path, namespace, engines=ENGINES, replicas=ENGINES,
        poll_seconds=3600,
    )  # fmt: skip

    def names() -> dict[str, set[str]]:
        """Return the names under which each adapter is served, on whatever engine."""
        found: dict[str, set[str]] = {}
        for engine in fleet.engines.values():
            for entry in engine.loaded.values():
                found.setdefault(entry.adapter.partition("/")[2], set()).add(entry.served_name)
        return found

    granted = {"from": [{"namespace": namespace}], "to": [{"kind": "ServedName"}]}
    kube.create(path("AdapterGrant", system), grant("names", **granted))
    # Where namespaces are not watched, one is known by what is in it.
    kube.create(path("AdapterGrant", system), grant("others"))
    old = f"{system}/chat"
    with LocalStack(tmp_path) as stack:
        async with fleet:
            stack.start_operator(
                cluster.kubeconfig,
                LORAFLEET_NAMESPACES=f"{namespace},{system}",
                LORAFLEET_VOLUME_ROOT=str(fleet.root),
                LORAFLEET_RESYNC_SECONDS="3600",
            )
            await fleet.apply("p", servedName=old)
            await fleet.apply("q", servedName="taken")
            await until(lambda: all(each.ready_at is not None for each in fleet.adapters.values()))
            await fleet.apply("p", servedName="taken")
            await until(lambda: "NameTaken" in str(fleet.adapters["p"].status))
            assert names() == {"p": {old}, "q": {"taken"}}, "it goes on under the name of before"
            kube.delete(path("AdapterGrant", system, "names"))
            await until(lambda: names() == {"q": {"taken"}})
