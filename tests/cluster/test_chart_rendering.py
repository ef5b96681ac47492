"""The chart with its sets of values: golden, linted, and taken by a real API server."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from chart_sets import (
    APIS,
    GOLDEN,
    NAMESPACES,
    SETS,
    SYSTEM,
    assert_golden,
    comparable,
    rendering,
)  # fmt: skip
from helm import CHART, given, helm, rendered
from localcluster import find_binary

if TYPE_CHECKING:
    from kube_rest import KubeRest
    from localcluster import LocalCluster

CERT_MANAGER = ("tls.mode=certManager", "tls.certManager.issuerRef.name=fleet-ca")
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
    _taken(target, text)


def _taken(target: LocalCluster, text: str) -> None:
    """Let the API server check every document, as if it were to be applied."""
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


NAMES = {
    "numbers": ("2024", "1e3", ("0x1f", "007")),
    "words of YAML": ("null", "on", ("true", "no")),
    "as long as they may be": ("r" * 53, "n" * 63, ("e" * 63,)),
    "a dot": ("team.a", "team-a", ("team-b",)),
}
ALL_KINDS = (
    "networkPolicy.enabled=true",
    "metrics.podMonitor.enabled=true",
    "alerts.enabled=true",
    "dashboards.enabled=true",
    "replicas=2",
    "shards=4",
)


@pytest.mark.parametrize("mode", ["cluster", "namespaced", "cert-manager"])
@pytest.mark.parametrize("case", NAMES)
def test_whatever_names_kubernetes_allows_make_objects_that_it_takes(
    case: str, mode: str, target: LocalCluster, bare_kube: KubeRest
) -> None:
    release, system, engines = NAMES[case]
    for name in (system, *engines):
        bare_kube.client.post("/api/v1/namespaces", json={"metadata": {"name": name}})
    served = "namespaces" if mode == "namespaced" else "tls.engineNamespaces"
    values = [*ALL_KINDS, "crds.enabled=false", f"{served}:={json.dumps(engines)}"]
    values += CERT_MANAGER if mode == "cert-manager" else []
    text = helm(
        *("template", release, CHART, "-n", system, "--kube-version", "1.36.0", *given(values)),
        *(part for api in APIS for part in ("--api-versions", api)),
    )
    _taken(target, text)


def test_a_version_with_a_plus_is_a_label_all_the_same(
    target: LocalCluster, tmp_path: Path
) -> None:
    command = ("package", CHART, "-d", tmp_path, "--version", "0.1.1+git.0a0a0a")
    helm(*command, "--app-version", "0.1.1+git.0a0a0a")
    (chart,) = tmp_path.glob("*.tgz")
    text = helm("template", "lorafleet", chart, "-n", SYSTEM, "--kube-version", "1.36.0")
    _taken(target, text)


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
