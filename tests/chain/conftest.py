"""Chain tests run against the API server that cluster tests use too."""

from __future__ import annotations

from cluster_fixture import cluster, kube, namespace

__all__ = ["cluster", "kube", "namespace"]
