"""The chart with its sets of values: golden, linted, and taken by a real API server."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from chart_sets import GOLDEN, NAMESPACES, SETS, assert_golden, comparable, rendering
from helm import CHART, given, helm, rendered
from localcluster import find_binary

if TYPE_CHECKING:
    from kube_rest import KubeRest
    from localcluster import LocalCluster

FOREIGN = Path(__file__).parents[1] / "foreign_crds.yaml"


@pytest.fixture(scope="module")
def target(bare: LocalCluster, bare_kube: KubeRest) -> LocalCluster:
    """An API server with the namespaces and the other projects' resources that the sets name."""
    for name in NAMESPACES:
        bare_kube.client.post("/api/v1/namespaces", json={"metadata": {"name": name}})
    for document in yaml.safe_load_all(FOREIGN.read_text()):
        bare_kube.install_crd(document)
    return bare


@pytest.mark.parametrize("name", SETS)
def test_the_rendered_chart_is_the_one_that_was_looked_at_and_the_api_server_takes_it(
    name: str, target: LocalCluster
) -> None:
    text = rendering(name)
    assert_golden(GOLDEN / f"{name}.yaml", comparable(text))
    applied = subprocess.run(
        [
            *(find_binary("kubectl"), "--kubeconfig", target.kubeconfig, "apply", "-f", "-"),
            *("--dry-run=server", "--validate=strict"),
        ],
        input=text,
        capture_output=True,
        text=True,
    )
    assert applied.returncode == 0, applied.stderr
    documents = [each for each in yaml.safe_load_all(text) if each]
    assert applied.stdout.count("(server dry run)") == len(documents)


@pytest.mark.parametrize("name", SETS)
def test_helm_lint_finds_nothing(name: str) -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", CHART, *given(SETS[name]))


def test_one_namespace_needs_no_right_on_the_cluster() -> None:
    kinds = {each["kind"] for each in rendered("namespaces={team-a}", "injection.enabled=false")}
    assert not {kind for kind in kinds if kind.startswith("Cluster")}
    assert {"Role", "RoleBinding"} <= kinds


def test_the_operator_runs_under_the_restricted_profile_with_a_root_that_it_cannot_write() -> None:
    for document in rendered():
        spec = document.get("spec", {})
        if document["kind"] not in ("Deployment", "Pod"):
            continue
        pod = spec["template"]["spec"] if document["kind"] == "Deployment" else spec
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


@pytest.mark.parametrize(
    ("replicas", "wanted"), [(0, False), (1, False), (2, True)], ids=["none", "one", "two"]
)
def test_a_single_replica_has_no_budget_that_would_hold_up_a_drain(
    replicas: int, wanted: bool
) -> None:
    kinds = {each["kind"] for each in rendered(f"replicas={replicas}", "tls.mode=none")}
    assert ("PodDisruptionBudget" in kinds) == wanted
