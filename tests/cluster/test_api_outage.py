"""The API server and its etcd go away, by kill -9, in the middle of everything, and come back.

A cluster of its own: the others' tests go on. No resync helps.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import pytest
from kube_rest import KubeRest
from localstack import LocalStack
from resource_builders import path
from simulated_engine import Behaviour
from simulated_fleet import SimulatedFleet
from waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from localcluster import LocalCluster

ENGINES, REPLICAS, SECONDS = 4, 3, 60
NAMESPACE = "outage"
OUTAGE_SECONDS = float(os.environ.get("LORAFLEET_OUTAGE_SECONDS", "3"))
"""Minutes by hand."""
CANARY = {"canary": {"engines": 1, "holdSeconds": 2}}


def settings(fleet: SimulatedFleet, **more: str) -> dict[str, str]:
    return {
        "LORAFLEET_NAMESPACES": fleet.namespace,
        "LORAFLEET_VOLUME_ROOT": str(fleet.root),
        "LORAFLEET_RESYNC_SECONDS": "3600",
        "LORAFLEET_LEASE_NAMESPACE": fleet.namespace,
        "LORAFLEET_LEASE_SECONDS": "3",
        **more,
    }


@pytest.mark.parametrize("killed", [("kube-apiserver",), ("etcd",), ("etcd", "kube-apiserver")])
async def test_nothing_is_lost_while_it_is_away_and_all_goes_on_when_it_is_back(
    mortal: LocalCluster, tmp_path: Path, killed: tuple[str, ...]
) -> None:
    behaviour = Behaviour(load_seconds=0.3)
    namespace = f"{NAMESPACE}-{'-'.join(killed)}"
    fleet = SimulatedFleet(
        mortal.kubeconfig, tmp_path, namespace, engines=ENGINES, replicas=REPLICAS,
        behaviour=behaviour,
    )  # fmt: skip
    with LocalStack(tmp_path) as stack:
        async with fleet:
            operator = stack.start_operator(mortal.kubeconfig, **settings(fleet))
            for number in range(8):
                await fleet.apply(f"a-{number}")
            await fleet.settled(SECONDS)
            before, unloads = fleet.served(), fleet.books.unloads
            await fleet.stir(CANARY)
            for name in killed:
                await asyncio.to_thread(mortal.kill, name)
            # For longer than a lease's time: nobody acts, and engines go on.
            await until(lambda: "shard 0 is not ours" in operator.process.log.read_text())
            await asyncio.sleep(OUTAGE_SECONDS)
            now = fleet.served()
            assert all(before[engine] - now[engine] <= {f"{namespace}/a-4"} for engine in before), (
                "what was served is served, but for what was deleted"
            )
            assert fleet.books.unloads <= unloads + REPLICAS

            for name in killed:
                await asyncio.to_thread(mortal.start_again, name)
            await fleet.settled(SECONDS)
            await until(lambda: not fleet.leftovers())
            assert operator.process.running
            # And hears of what comes.
            await fleet.apply("a-5", 2)
            await fleet.delete("a-6")
            await fleet.settled(SECONDS)
            await until(lambda: not fleet.leftovers())
            assert fleet.books.overruns == []


async def test_what_changed_while_no_watch_ran_is_seen_in_the_lists_after(
    mortal: LocalCluster, tmp_path: Path
) -> None:
    """The versions that the watches would go on from are gone (410): they begin with lists again."""
    fleet = SimulatedFleet(
        mortal.kubeconfig, tmp_path, f"{NAMESPACE}-gone", engines=ENGINES, replicas=REPLICAS
    )
    with LocalStack(tmp_path) as stack:
        async with fleet:
            operator = stack.start_operator(mortal.kubeconfig, **settings(fleet))
            for number in range(6):
                await fleet.apply(f"a-{number}")
            await fleet.settled(SECONDS)
            os.kill(operator.process.pid, signal.SIGSTOP)
            # One goes without its finalizer's leave and comes back as another, one is another's by now.
            with KubeRest(mortal.kubeconfig) as kube:
                for name in ("a-0", "a-1"):
                    place = path("LoRAAdapter", fleet.namespace, name)
                    kube.merge(place, {"metadata": {"finalizers": None}})
                    await fleet.delete(name)
            await fleet.apply("a-0", 3)
            await fleet.apply("a-2", 2)
            await fleet.apply("a-6")
            await fleet.lose_engines([f"engine-{ENGINES - 1}"])
            await fleet.add_engine("new")  # has the address of that one
            await asyncio.to_thread(mortal.kill, "kube-apiserver")
            await asyncio.to_thread(mortal.start_again, "kube-apiserver")
            os.kill(operator.process.pid, signal.SIGCONT)
            await fleet.settled(SECONDS)
            await until(lambda: not fleet.leftovers())
            assert not any("a-1" in str(fleet.served()[name]) for name in fleet.engines)
