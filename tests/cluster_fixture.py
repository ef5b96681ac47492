"""The API server that cluster and chain tests share; a conftest imports the fixtures from here."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from kube_rest import KubeRest
from localcluster import LocalCluster

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A running API server, or that of KUBECONFIG with LORAFLEET_USE_KUBECONFIG=1."""
    with LocalCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="session")
def kube(cluster: LocalCluster) -> Iterator[KubeRest]:
    """A REST client for it, with the CRDs of this checkout installed."""
    with KubeRest(cluster.kubeconfig) as rest:
        for path in sorted((REPOSITORY / "crds").glob("*.yaml")):
            rest.install_crd(yaml.safe_load(path.read_text()))
        yield rest


def refused_finalizers(cluster: LocalCluster, name: str) -> int:
    """How often the API server's finalizer of a CRD was refused its objects, by the server's own log.

    After each of them it may drop the CRD for minutes (KubeRest.warm_crd).
    """
    if cluster.borrowed:
        return 0
    log = (cluster.directory / "logs" / "kube-apiserver.log").read_text()
    return log.count(f"{name} failed with: storage is (re)initializing")


@pytest.fixture
def namespace(kube: KubeRest) -> Iterator[str]:
    """A namespace of the test's own."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    kube.create("/api/v1/namespaces", {"metadata": {"name": name}})
    yield name
    # Without controllers it stays, terminating; on a real cluster it goes.
    kube.delete(f"/api/v1/namespaces/{name}")
