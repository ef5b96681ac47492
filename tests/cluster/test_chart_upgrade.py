"""The chart installed by Helm on a real API server; the operator runs as its Deployment says, by the rights
that the chart gives it; an upgrade with adapters loaded loads and sends nothing again."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING

import httpx
import pytest
from chart_release import Release
from helm import CHART, helm
from localstack import LocalStack
from processes import answers
from simulated_fleet import SimulatedFleet

if TYPE_CHECKING:
    from pathlib import Path

    from kube_rest import KubeRest
    from localcluster import LocalCluster
    from processes import LocalProcess

SECONDS = 120
ADAPTERS = 8
CLUSTER_WIDE = {"ClusterRole", "ClusterRoleBinding"}


def packaged(directory: Path, version: str) -> Path:
    """Package the chart as another version of itself."""
    copy = directory / f"chart-{version}"
    shutil.copytree(CHART, copy)
    command = ("package", copy, "-d", directory, "--version", version, "--app-version", version)
    helm(*command)
    return directory / f"lorafleet-{version}.tgz"


async def ended(process: LocalProcess) -> None:
    process.popen.terminate()
    await asyncio.to_thread(process.popen.wait, SECONDS)


async def passes(url: str, wanted: int) -> None:
    """Return when the operator has ended as many passes over adapters."""
    line = 'lorafleet_operator_reconcile_duration_seconds_count{kind="LoRAAdapter"} '
    found = 0.0
    async with asyncio.timeout(SECONDS), httpx.AsyncClient(timeout=SECONDS) as client:
        while found < wanted:
            await asyncio.sleep(0.2)
            text = (await client.get(f"{url}/metrics")).text
            found = float(text.partition(line)[2].partition("\n")[0] or 0)


@pytest.mark.parametrize("mode", ["namespaced", "cluster"])
async def test_an_upgrade_with_adapters_loaded_loads_and_sends_nothing_again(
    mode: str, cluster: LocalCluster, kube: KubeRest, namespace: str, system: str, tmp_path: Path
) -> None:
    values = [
        "crds.enabled=false", "injection.enabled=false", "tls.mode=none",
        "settings.RESYNC_SECONDS=1", "settings.LEASE_SECONDS=2",
        f'volumes:=[{{"namespace": "{namespace}", "claimName": "claim"}}]',
    ]  # fmt: skip
    if mode == "namespaced":
        values.append(f"namespaces={{{namespace}}}")
    release = Release(kube, cluster.kubeconfig, system, *values)
    fleet = SimulatedFleet(cluster.kubeconfig, tmp_path, namespace, engines=3, replicas=2)
    with LocalStack(tmp_path) as stack:
        async with fleet:
            mounts = {"/volumes": fleet.root}
            names = [f"a-{number}" for number in range(ADAPTERS)]
            await asyncio.gather(*(fleet.apply(name) for name in names))
            await asyncio.to_thread(release.install, chart=packaged(tmp_path, "1.0.0"))
            assert bool(CLUSTER_WIDE & release.kinds()) == (mode == "cluster")
            operator, url = release.start_operator(stack, mounts)
            await fleet.settled(SECONDS)
            loaded = (fleet.books.loads, fleet.books.stagings, fleet.books.orders)
            assert loaded[0] >= 2 * ADAPTERS

            said = await asyncio.to_thread(release.install, chart=packaged(tmp_path, "1.1.0"))
            assert "STATUS: deployed" in said
            place = f"/apis/apps/v1/namespaces/{system}/deployments/lorafleet"
            (container,) = kube.get(place)["spec"]["template"]["spec"]["containers"]
            assert container["image"] == "lorafleet/operator:1.1.0"
            # As a rolling update does: the new one stands by until the old one ends.
            second, url = release.start_operator(stack, mounts)
            await asyncio.to_thread(second.wait_until, lambda: answers(f"{url}/healthz"), SECONDS)
            await ended(operator)
            await passes(url, 3 * ADAPTERS)
            assert (fleet.books.loads, fleet.books.stagings, fleet.books.orders) == loaded
            assert fleet.unsettled() == []

            checked = await asyncio.to_thread(release.test, stack)
            assert "ok: rights: may list what it watches in" in checked
            assert f"ok: operator: {release.name}-2 acts for the pools" in checked
            await asyncio.to_thread(release.uninstall)
            await ended(second)
            assert fleet.books.unloads == 0, "what is served stays when the operator goes"
