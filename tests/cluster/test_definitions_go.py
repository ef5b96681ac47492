"""A CustomResourceDefinition that is deleted goes at once if its objects were asked for before; else it may not."""

from __future__ import annotations

import os
import subprocess
import uuid
from typing import TYPE_CHECKING

import pytest
from cluster_fixture import refused_finalizers
from kube_rest import CRDS
from localcluster import find_binary
from waiting import eventually

if TYPE_CHECKING:
    from kube_rest import KubeRest
    from localcluster import LocalCluster


def cold_crd(kube: KubeRest) -> str:
    """Make a CRD whose objects nobody has asked for (`install_crd` does); return its name."""
    plural = f"cold{uuid.uuid4().hex[:8]}"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    spec = {
        "group": "lorafleet.example",
        "names": {"plural": plural, "singular": plural, "kind": plural.title()},
        "scope": "Namespaced",
        "versions": [version],
    }
    name = f"{plural}.lorafleet.example"
    kube.create(CRDS, {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": name},
        "spec": spec,
    })  # fmt: skip

    def established() -> bool:
        conditions = kube.get(f"{CRDS}/{name}")["status"].get("conditions") or []
        return ("Established", "True") in [(each["type"], each["status"]) for each in conditions]

    eventually(established)
    return name


def test_one_that_a_test_removes_is_warm_and_goes_without_a_refusal(
    bare: LocalCluster, bare_kube: KubeRest
) -> None:
    for _ in range(3):
        name = cold_crd(bare_kube)
        bare_kube.remove_crd(name)
        assert bare_kube.client.get(f"{CRDS}/{name}").status_code == 404
        assert refused_finalizers(bare, name) == 0
        bare_kube.remove_crd(name)  # none is right too


def test_one_that_nobody_asked_for_is_refused_and_goes_when_it_is_labelled(
    bare: LocalCluster, bare_kube: KubeRest
) -> None:
    """What docs/install.md says of one that stays; here some stay, and some go by themselves."""
    if bare.borrowed:
        pytest.skip("the API server's log is not here")
    names = [cold_crd(bare_kube) for _ in range(8)]
    for name in names:
        bare_kube.delete(f"{CRDS}/{name}")
    eventually(lambda: all(refused_finalizers(bare, name) for name in names))
    env = {**os.environ, "KUBECONFIG": str(bare.kubeconfig)}
    for name in names:  # it may be gone, so how this ends is nothing
        command = [find_binary("kubectl"), "label", "crd", name, "going=now"]
        subprocess.run(command, env=env, capture_output=True, timeout=60)
    for name in names:
        place = f"{CRDS}/{name}"
        eventually(
            lambda place=place: bare_kube.client.get(place).status_code == 404,
            what=f"{name} stays though it has a label",
        )
