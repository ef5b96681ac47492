"""What the operator reads of Secrets from a real API server, with the rights of the chart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from chart_role import kubeconfig, token
from kubernetes.aio import client, config
from lorafleet.errors import AccessDenied
from lorafleet_operator.cluster import reads
from lorafleet_operator.cluster.requests import NoAnswer

if TYPE_CHECKING:
    from pathlib import Path

    from kube_rest import KubeRest
    from localcluster import LocalCluster

pytestmark = pytest.mark.cluster


async def test_the_version_of_a_secret_is_known_without_its_content(
    cluster: LocalCluster, kube: KubeRest, namespace: str, tmp_path: Path
) -> None:
    secrets = f"/api/v1/namespaces/{namespace}/secrets"
    body = {"metadata": {"name": "keys"}, "stringData": {"token": "c0ffee"}}
    first = kube.create(secrets, body)["metadata"]["resourceVersion"]
    answer = kube.get(f"{secrets}/keys", accept=reads.METADATA_ONLY)
    assert answer["kind"] == "PartialObjectMetadata"
    assert "data" not in answer

    limited = kubeconfig(cluster.kubeconfig, tmp_path / "role", token(kube, namespace))
    await config.load_kube_config(str(limited))
    async with client.ApiClient() as api:
        found = await reads.secret(api, namespace, "keys")
        assert (found.data, found.version) == ({"token": b"c0ffee"}, first)
        assert "c0ffee" not in repr(found)
        assert await reads.secret_version(api, namespace, "keys") == first
        second = kube.merge(f"{secrets}/keys", {"stringData": {"token": "f00d"}})
        assert await reads.secret_version(api, namespace, "keys") != first
        assert second["metadata"]["resourceVersion"] == (
            await reads.secret_version(api, namespace, "keys")
        )

        kube.delete(f"{secrets}/keys")
        assert await reads.secret(api, namespace, "keys") == reads.Secret(None, "")
        assert await reads.secret_version(api, namespace, "keys") == ""
        with pytest.raises(AccessDenied, match="may not read Secret default/keys"):
            await reads.secret(api, "default", "keys")
        with pytest.raises(NoAnswer, match="Secret default/keys: 403"):
            await reads.secret_version(api, "default", "keys")
