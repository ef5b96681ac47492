"""The sets of values that the chart is looked at with, and where the renderings are kept."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml
from helm import CHART, given, helm

if TYPE_CHECKING:
    from collections.abc import Iterator

GOLDEN: Final = Path(__file__).parent / "chart_goldens"
SYSTEM: Final = "lorafleet-system"
NAMESPACES: Final = (SYSTEM, "team-a", "team-b")
APIS: Final = (
    "cert-manager.io/v1/Certificate",
    "monitoring.coreos.com/v1/PodMonitor",
    "monitoring.coreos.com/v1/PrometheusRule",
)
_STANDARD: Final = {
    "app.kubernetes.io/name",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/version",
    "app.kubernetes.io/managed-by",
    "helm.sh/chart",
}
_PLAIN: Final = ("injection.enabled=false",)
SETS: Final[dict[str, tuple[str, ...]]] = {
    "default": (),
    "namespaced": (*_PLAIN, "namespaces={team-a,team-b}", "networkPolicy.enabled=true"),
    "replicas": (
        *_PLAIN,
        "tls.mode=none",
        "replicas=3",
        "shards=6",
        "priorityClassName=system-cluster-critical",
        "settings.RESYNC_SECONDS=30",
        "settings.POD_SELECTOR=lorafleet.dev/engine-pool",
        'env:=[{"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"}]',
        'volumes:=[{"namespace": "team-a", "claimName": "models"}]',
        "nodeSelector.pool=system",
        'tolerations:=[{"key": "system", "operator": "Exists"}]',
        'topologySpreadConstraints:=[{"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", '
        '"whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app.kubernetes.io/name": "lorafleet"}}}]',
        "podAnnotations.example\\.com/owner=platform",
        "podLabels.team=platform",
    ),
    "cert-manager": (
        *_PLAIN,
        "tls.mode=certManager",
        "tls.certManager.issuerRef.name=fleet-ca",
        "tls.engineNamespaces={team-a}",
        "crds.enabled=false",
    ),
    "push": (
        *_PLAIN,
        "namespaces={team-a}",
        "networkPolicy.enabled=true",
        "push.enabled=true",
        "push.tls.names={push.example}",
        "push.spool.claim=pushed",
        "push.limits.revisions=5",
    ),
    "monitored": (
        *_PLAIN,
        "tls.mode=none",
        "metrics.annotations=false",
        "metrics.podMonitor.enabled=true",
        "metrics.podMonitor.labels.release=prometheus",
        "alerts.enabled=true",
        "alerts.labels.release=prometheus",
        "dashboards.enabled=true",
        "dashboards.annotations.grafana_folder=lorafleet",
    ),
    "secret": (
        *_PLAIN,
        "tls.mode=secret",
        "tls.secret=operator-certificate",
        "serviceAccount.name=operator",
        "serviceAccount.annotations.example\\.com/role=reader",
        'imagePullSecrets:=[{"name": "registry"}]',
        "image.repository=registry.example/operator",
        "image.tag=v9",
        "namespaces={team-a}",
        "crds.keep=false",
    ),
}


def rendering(name: str) -> str:
    """Return what Helm makes of a set of values, with what is made anew each time."""
    known = [part for api in APIS for part in ("--api-versions", api)]
    place = ["template", "lorafleet", CHART, "-n", SYSTEM, "--kube-version", "1.36.0"]
    return helm(*place, *given(SETS[name]), *known)


def comparable(text: str) -> str:
    """Return a rendering without secrets, dates and what other files hold, one document after another."""
    return yaml.safe_dump_all(_without_contents(text), sort_keys=False, width=120)


def _without_contents(text: str) -> Iterator[dict[str, Any]]:
    for document in yaml.safe_load_all(text):
        if not document:
            continue
        _fold_labels(document)
        if document["kind"] == "CustomResourceDefinition":
            document["spec"] = "(crds)"
        elif document["kind"] == "Secret":
            document["data"] = sorted(document["data"])
            notes = document["metadata"].get("annotations", {})
            notes |= {name: "(new)" for name in notes if re.search("signed-by|renew-from", name)}
        elif document["kind"] == "ConfigMap":
            document["data"] = sorted(document["data"])
        elif document["kind"].endswith("AdmissionPolicy"):
            # What they do is tried on a real API server (tests/cluster/test_injection*.py).
            for part in document["spec"].keys() & {"variables", "mutations", "validations"}:
                document["spec"][part] = f"({len(document['spec'][part])} {part})"
        elif document["kind"] == "PrometheusRule":
            document["spec"] = "(alerts)"
        yield document


def _fold_labels(node: Any) -> None:
    """Put one word in place of the labels that everything has and every version changes."""
    for each in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        _fold_labels(each)
    if isinstance(node, dict) and (node.get("labels") or {}).keys() >= _STANDARD:
        more = {name: it for name, it in node["labels"].items() if name not in _STANDARD}
        node["labels"] = {"(of the chart)": "", **more}


def assert_golden(path: Path, text: str) -> None:
    """Compare with what is kept; LORAFLEET_WRITE_GOLDEN=1 keeps this instead."""
    if os.environ.get("LORAFLEET_WRITE_GOLDEN") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    kept = path.read_text() if path.exists() else ""
    assert text == kept, f"look at the difference, then LORAFLEET_WRITE_GOLDEN=1 keeps {path.name}"
