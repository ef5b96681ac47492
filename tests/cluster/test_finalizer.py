"""Our finalizer beside those of others, on a real API server with the rights of the chart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from chart_role import kubeconfig, token
from kubernetes.aio import client, config
from lorafleet_operator.api.names import ADAPTER_PLURAL, FINALIZER
from lorafleet_operator.cluster import finalizer
from resource_builders import adapter, path

if TYPE_CHECKING:
    from pathlib import Path

    from kube_rest import KubeRest
    from localcluster import LocalCluster

OTHER = "example.com/backup"


async def test_ours_comes_and_goes_and_those_of_others_stay_whenever_they_came(
    cluster: LocalCluster, kube: KubeRest, namespace: str, tmp_path: Path
) -> None:
    first = kube.create(path("LoRAAdapter", namespace), adapter())
    here = path("LoRAAdapter", namespace, first["metadata"]["name"])
    limited = kubeconfig(cluster.kubeconfig, tmp_path / "role", token(kube, namespace))
    await config.load_kube_config(str(limited))
    async with client.ApiClient() as api:
        assert not finalizer.is_held(first)
        held = await finalizer.hold(api, ADAPTER_PLURAL, first)
        assert held["metadata"]["finalizers"] == [FINALIZER]
        with pytest.raises(finalizer.Overtaken):
            await finalizer.hold(api, ADAPTER_PLURAL, first)

        kube.merge(here, {"metadata": {"finalizers": [OTHER, FINALIZER]}})
        kube.delete(here)
        with pytest.raises(finalizer.Overtaken):
            await finalizer.release(api, ADAPTER_PLURAL, held)
        left = await finalizer.release(api, ADAPTER_PLURAL, kube.get(here))
        assert left["metadata"]["finalizers"] == [OTHER]

        kube.merge(here, {"metadata": {"finalizers": None}})
        with pytest.raises(finalizer.Overtaken):
            await finalizer.release(api, ADAPTER_PLURAL, held)


async def test_ours_is_put_beside_one_that_is_there(
    cluster: LocalCluster, kube: KubeRest, namespace: str
) -> None:
    made = adapter()
    made["metadata"]["finalizers"] = [OTHER]
    first = kube.create(path("LoRAAdapter", namespace), made)
    await config.load_kube_config(str(cluster.kubeconfig))
    async with client.ApiClient() as api:
        held = await finalizer.hold(api, ADAPTER_PLURAL, first)
    assert held["metadata"]["finalizers"] == [OTHER, FINALIZER]
    kube.merge(
        path("LoRAAdapter", namespace, first["metadata"]["name"]),
        {"metadata": {"finalizers": None}},
    )
