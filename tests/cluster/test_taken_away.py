"""What people take away from an adapter or a pool, the operator puts back: at once, not at a resync."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from localstack import LocalStack
from lorafleet_operator.api.names import FINALIZER
from resource_builders import path
from simulated_fleet import POOL, SimulatedFleet
from waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from kube_rest import KubeRest
    from localcluster import LocalCluster

SECONDS = 60


async def test_a_status_and_a_finalizer_come_back_at_once(
    cluster: LocalCluster, kube: KubeRest, namespace: str, tmp_path: Path
) -> None:
    fleet = SimulatedFleet(cluster.kubeconfig, tmp_path, namespace, engines=2, replicas=2)
    with LocalStack(tmp_path) as stack:
        async with fleet:
            stack.start_operator(
                cluster.kubeconfig,
                LORAFLEET_NAMESPACES=namespace,
                LORAFLEET_VOLUME_ROOT=str(fleet.root),
                LORAFLEET_RESYNC_SECONDS="3600",
            )
            await fleet.apply("a")
            await fleet.settled(SECONDS)
            await fleet.quiet()
            orders = fleet.books.orders
            here, there = path("LoRAAdapter", namespace, "a"), path("EnginePool", namespace, POOL)

            def status_of(place: str) -> dict[str, Any]:
                return kube.get(place).get("status") or {}

            def ready() -> bool:
                return status_of(here).get("readyEngines") == 2

            engines = status_of(there)["totalEngines"]
            for place in (here, there):
                kube.merge(f"{place}/status", {"status": None})
            await until(ready)
            await until(lambda: status_of(there).get("totalEngines") == engines == 2)
            kube.merge(here, {"metadata": {"finalizers": None}})
            await until(lambda: FINALIZER in (kube.get(here)["metadata"].get("finalizers") or ()))
            assert ready()
            assert fleet.books.orders == orders, "no engine is told anything"
