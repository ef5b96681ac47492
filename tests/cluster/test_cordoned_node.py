"""`kubectl cordon`: engines on such a node keep what they have and get nothing new."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gated_fleet import GatedFleet
from localstack import LocalStack
from simulated_engine import Behaviour

if TYPE_CHECKING:
    from pathlib import Path

    from kube_rest import KubeRest
    from localcluster import LocalCluster

NODES = "/api/v1/nodes"
COLD = f"{NODES}/cold"


async def test_engines_on_a_cordoned_node_keep_what_they_have_and_get_nothing_new(
    cluster: LocalCluster, kube: KubeRest, namespace: str, tmp_path: Path
) -> None:
    made = GatedFleet(cluster.kubeconfig, tmp_path, namespace, replicas=1, behaviour=Behaviour())
    kube.create(NODES, {"metadata": {"name": "cold"}, "spec": {"unschedulable": True}})
    with LocalStack(tmp_path) as stack:
        async with made:
            await made.add("engine-0")
            await made.add("engine-1", node="cold")
            stack.start_operator(cluster.kubeconfig, LORAFLEET_VOLUME_ROOT=str(made.root))
            await asyncio.gather(*(made.apply(f"a-{number}") for number in range(4)))
            await made.settled_on({"engine-0"})
            await said_to_be_cordoned(made, {"engine-1"})

            kube.merge(COLD, {"spec": {"unschedulable": None}})
            await said_to_be_cordoned(made, set())
            await asyncio.gather(*(made.apply(f"b-{number}") for number in range(4)))
            await made.until(lambda: made.served_by("engine-1"))
            await made.settled_on({"engine-0", "engine-1"})
            there = made.served_by("engine-1")

            kube.merge(COLD, {"spec": {"unschedulable": True}})
            await said_to_be_cordoned(made, {"engine-1"})
            await made.apply("c")
            await made.settled_on({"engine-0", "engine-1"})
            assert made.served_by("engine-1") == there
    kube.delete(COLD)


async def said_to_be_cordoned(fleet: GatedFleet, names: set[str]) -> None:
    """Wait until the pool's status calls these engines cordoned, and no others."""
    async with asyncio.timeout(60):
        while True:
            status = await fleet.pool_status()
            there = [e for e in status.get("engines", ()) if e.get("cordoned")]
            if {each["podName"] for each in there} == names:
                return
            await asyncio.sleep(0.1)
