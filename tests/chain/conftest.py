"""Chain tests run against the API server that cluster tests use too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cluster_fixture import cluster, kube, namespace
from operator_chain import Chain

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from localcluster import LocalCluster
    from lorafleet.push import Fleet
    from real_chain import RealChain

__all__ = ["cluster", "kube", "namespace"]


@pytest.fixture
def chain(cluster: LocalCluster, namespace: str, tmp_path: Path) -> Iterator[Chain]:
    """A namespace of its own with nothing running in it yet; whatever is started ends with it."""
    chain = Chain(cluster.kubeconfig, tmp_path, namespace)
    try:
        yield chain
    finally:
        chain.stop()


@pytest.fixture(scope="session")
def fleet() -> Iterator[RealChain]:
    """One real engine for all modules that ask for it; tests delete what they apply."""
    from real_chain import real_fleet  # vLLM's side of the tests: others need none of it

    with real_fleet() as chain:
        yield chain


@pytest.fixture
def client(fleet: RealChain, tmp_path: Path) -> Iterator[Fleet]:
    """A trainer's connection to the fleet, whose operator takes pushes into `tmp_path`/pushed."""
    from pushing import taking_pushes

    assert fleet.operator is not None
    fleet.operator.process.stop()
    with taking_pushes(fleet, tmp_path / "pushed") as client:
        yield client
    fleet.start_operator()
