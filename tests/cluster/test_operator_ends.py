"""How the operator ends when it is told so more than once."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

from localstack import LocalStack
from simulated_fleet import SimulatedFleet

if TYPE_CHECKING:
    from pathlib import Path

    from kube_rest import KubeRest
    from localcluster import LocalCluster

SECONDS = 60


async def test_signals_after_the_first_change_nothing_about_its_end(
    cluster: LocalCluster, kube: KubeRest, namespace: str, tmp_path: Path
) -> None:
    with LocalStack(tmp_path) as stack:
        async with SimulatedFleet(cluster.kubeconfig, tmp_path, namespace, engines=1) as fleet:
            operator = stack.start_operator(
                cluster.kubeconfig,
                LORAFLEET_NAMESPACES=namespace,
                LORAFLEET_VOLUME_ROOT=str(fleet.root),
                LORAFLEET_LEASE_NAMESPACE=namespace,
            )
            await asyncio.to_thread(operator.wait)
            # Both wait for it, so that it gets the second one before it can have ended.
            for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
                os.kill(operator.process.pid, number)
            code = await asyncio.to_thread(operator.process.popen.wait, SECONDS)
            log = operator.process.log.read_text()
            assert code == 0, log
            assert "Traceback" not in log
            place = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
            assert [each["spec"]["holderIdentity"] for each in kube.get(place)["items"]] == [""]
