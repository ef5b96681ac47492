"""Tests that need a real kube-apiserver."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster_fixture import cluster, kube, namespace

__all__ = ["cluster", "kube", "namespace"]

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder carries the marker that says what must be running."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.cluster)
