"""Tests that need a real kube-apiserver."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from cluster_fixture import REPOSITORY, cluster, kube, namespace
from kube_rest import KubeRest
from localcluster import LocalCluster

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["cluster", "kube", "namespace"]

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder carries the marker that says what must be running."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.cluster)


@pytest.fixture
def system(kube: KubeRest) -> Iterator[str]:
    """A namespace for the operator, beside the one that it serves."""
    name = f"system-{uuid.uuid4().hex[:8]}"
    kube.create("/api/v1/namespaces", {"metadata": {"name": name}})
    yield name
    kube.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture(scope="session")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """An API server of few tests: it may be killed, and who looks at all of it finds little."""
    with LocalCluster(tmp_path_factory.mktemp("mortal")) as running:
        with KubeRest(running.kubeconfig) as rest:
            for file in sorted((REPOSITORY / "crds").glob("*.yaml")):
                rest.install_crd(yaml.safe_load(file.read_text()))
        yield running


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """An API server without our CustomResourceDefinitions: they come with the chart."""
    with LocalCluster(tmp_path_factory.mktemp("bare")) as running:
        yield running


@pytest.fixture(scope="session")
def bare_kube(bare: LocalCluster) -> Iterator[KubeRest]:
    """A REST client for it."""
    with KubeRest(bare.kubeconfig) as rest:
        yield rest
