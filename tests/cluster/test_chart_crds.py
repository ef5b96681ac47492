"""The CustomResourceDefinitions of the chart: missing, old, taken over, upgraded, kept."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from chart_release import Release
from helm import CHART, HelmFailed, helm
from kube_rest import CRDS, KubeRest
from localstack import LocalStack
from processes import answers
from resource_builders import adapter, path
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from localcluster import LocalCluster

SYSTEM = "crds-system"
PLAIN = ("injection.enabled=false", "tls.mode=none", "settings.LEASE_SECONDS=2")
LACKS = ("idleSeconds", "canary")


@pytest.fixture
def release(bare: LocalCluster, bare_kube: KubeRest) -> Iterator[Release]:
    """A release that is not installed yet; afterwards there are neither it nor definitions."""
    bare_kube.client.post("/api/v1/namespaces", json={"metadata": {"name": SYSTEM}})
    made = Release(bare_kube, bare.kubeconfig, SYSTEM, *PLAIN)
    yield made
    helm("uninstall", made.name, "-n", SYSTEM, "--ignore-not-found", kubeconfig=bare.kubeconfig)
    for name in ours(bare_kube):
        bare_kube.remove_crd(name)


def ours(kube: KubeRest) -> set[str]:
    found = kube.get(CRDS)["items"]
    return {each["metadata"]["name"] for each in found if each["spec"]["group"] == "lorafleet.dev"}


def documents() -> list[dict[str, Any]]:
    return [
        yaml.safe_load(each.read_text()) for each in sorted((CHART / "files/crds").glob("*.yaml"))
    ]


def without(fields: tuple[str, ...], document: dict[str, Any]) -> dict[str, Any]:
    """Return the definition as a version had it that did not know the fields."""

    def drop(node: dict[str, Any] | list[Any]) -> None:
        if isinstance(node, dict):
            node.pop("x-kubernetes-validations", None)  # rules may name the fields
            for field in fields:
                node.get("properties", {}).pop(field, None)
        for each in node.values() if isinstance(node, dict) else node:
            if isinstance(each, dict | list):
                drop(each)

    drop(document["spec"]["versions"])
    return document


def old_chart(directory: Path) -> Path:
    """Return the chart with definitions of an earlier version."""
    copy = directory / "old"
    shutil.copytree(CHART, copy)
    for file in (copy / "files/crds").glob("*.yaml"):
        file.write_text(yaml.safe_dump(without(LACKS, yaml.safe_load(file.read_text()))))
    return copy


def refusal_of_a_start(bare: LocalCluster) -> str:
    """Start the operator, which does not wait here; return the only line that it says before it ends."""
    program = (
        "from lorafleet_operator import cli; cli.SERVED_SECONDS = 0; raise SystemExit(cli.main())"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, "run"],
        env={**os.environ, "KUBECONFIG": str(bare.kubeconfig)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1, ended.stderr
    return ended.stderr.strip()


def test_a_start_without_definitions_ends_with_one_line(
    bare: LocalCluster, release: Release
) -> None:
    assert refusal_of_a_start(bare) == (
        "lorafleet-operator: the API server has no LoRAAdapter and no EnginePool and no AdapterGrant "
        "of lorafleet.dev/v1alpha1: install the CustomResourceDefinitions (the chart's, or kubectl "
        "apply -f crds/)"
    )


def test_old_definitions_are_named_taken_over_and_upgraded_and_every_one_is_kept(
    bare: LocalCluster,
    bare_kube: KubeRest,
    release: Release,
    tmp_path: Path,
) -> None:
    # Somebody applied an earlier version's by hand.
    for document in documents():
        bare_kube.install_crd(without(LACKS, document))
    place = path("LoRAAdapter", SYSTEM)
    made = bare_kube.create(place, adapter())
    line = (
        "lorafleet-operator: the CustomResourceDefinition of LoRAAdapter is older than this operator, "
        "it has no spec.placement.idleSeconds, spec.rollout.canary, status.engines[].canary and 1 more: "
        "upgrade the CustomResourceDefinitions first"
    )
    # What is served appears in the document a moment after it is established.
    eventually(lambda: refusal_of_a_start(bare) == line)
    with pytest.raises(HelmFailed, match="exists and cannot be imported into the current"):
        release.install()
    # As docs/install.md says.
    command = ("upgrade", "--install", release.name, old_chart(tmp_path), "-n", SYSTEM)
    values = [part for each in PLAIN for part in ("--set", each)]
    helm(*command, "--take-ownership", *values, kubeconfig=bare.kubeconfig)
    assert "has no spec.placement.idleSeconds" in refusal_of_a_start(bare)

    release.install()
    with LocalStack(tmp_path) as stack:
        operator, url = release.start_operator(stack)
        operator.wait_until(lambda: answers(f"{url}/healthz"), 60)
        assert "ok: resources: lorafleet.dev/v1alpha1 is served with every" in release.test(stack)

    release.uninstall()
    assert {document["metadata"]["name"] for document in documents()} == ours(bare_kube)
    assert bare_kube.get(f"{place}/sql")["metadata"]["uid"] == made["metadata"]["uid"]
    release.install()  # finds them as its own
    # The operator that put its finalizer on is gone.
    bare_kube.merge(f"{place}/sql", {"metadata": {"finalizers": None}})
    bare_kube.delete(f"{place}/sql")


def test_definitions_go_with_the_chart_when_that_was_asked_for(
    bare_kube: KubeRest, release: Release
) -> None:
    release.install("crds.keep=false")
    for name in ours(bare_kube):
        bare_kube.warm_crd(name)
    release.uninstall()
    eventually(lambda: not ours(bare_kube), what="a definition stays")
