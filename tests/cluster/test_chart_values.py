"""Values that are wrong, and clusters that lack what they ask for: one clear line each."""

from __future__ import annotations

import pytest
from helm import HelmFailed, rendered

CERT_MANAGER = ("tls.mode=certManager", "tls.certManager.issuerRef.name=ca")
WRONG = {
    "an unknown key": (["replica=2"], "at '': additional properties 'replica' not allowed"),
    "an unknown key inside": (
        ["tls.enginenamespaces={a}"],
        "at '/tls': additional properties 'enginenamespaces' not allowed",
    ),
    "a text for a number": (["replicas=two"], "at '/replicas': got string, want integer"),
    "a text for a list": (["namespaces=a"], "at '/namespaces': got string, want array"),
    "negative replicas": (["replicas=-1"], "at '/replicas': minimum: got -1, want 0"),
    "no shard": (["shards=0"], "at '/shards': minimum: got 0, want 1"),
    "too many shards": (["shards=65"], "at '/shards': maximum: got 65, want 64"),
    "no name of a namespace": (
        ["namespaces={Team_A}"],
        "at '/namespaces/0': 'Team_A' does not match pattern",
    ),
    "a namespace twice": (["namespaces={a,a}"], "at '/namespaces': items at 0 and 1 are equal"),
    "an unknown setting": (
        ["settings.RESYNC=5"],
        "at '/settings': additional properties 'RESYNC' not allowed",
    ),
    "a setting that the chart makes": (
        ["settings.SHARDS=5"],
        "at '/settings': additional properties 'SHARDS' not allowed",
    ),
    "a setting among the variables": (
        ['env:=[{"name": "LORAFLEET_SHARDS", "value": "5"}]'],
        "at '/env/0/name': 'not' failed",
    ),
    "an unknown mode": (
        ["tls.mode=vault"],
        "at '/tls/mode': value must be one of 'helm', 'certManager', 'secret', 'none'",
    ),
    "a Secret and the chart's own authority": (
        ["tls.secret=mine"],
        "tls.secret is mine, but tls.mode is helm: certificates come from one place",
    ),
    "a Secret and cert-manager": (
        [*CERT_MANAGER, "tls.secret=mine"],
        "tls.secret is mine, but tls.mode is certManager: certificates come from one place",
    ),
    "an issuer and the chart's own authority": (
        ["tls.certManager.issuerRef.name=ca"],
        "tls.certManager.issuerRef.name is ca, but tls.mode is helm: set tls.mode to certManager",
    ),
    "mode secret without one": (
        ["tls.mode=secret"],
        "tls.mode is secret and tls.secret is empty: name the Secret",
    ),
    "cert-manager without an issuer": (
        ["tls.mode=certManager"],
        "tls.mode is certManager and tls.certManager.issuerRef.name is empty: name the issuer",
    ),
    "an Issuer for other namespaces": (
        [*CERT_MANAGER, "tls.certManager.issuerRef.kind=Issuer", "tls.engineNamespaces={a}"],
        "kind is Issuer, which does not reach the engines' namespace a: use a ClusterIssuer",
    ),
    "engines where nothing is served": (
        ["namespaces={a}", "tls.engineNamespaces={b}"],
        "tls.engineNamespaces has b, which is not in namespaces: the operator does not serve it",
    ),
    "a claim where nothing is served": (
        ["namespaces={a}", 'volumes:=[{"namespace": "b", "claimName": "c"}]'],
        "volumes has a claim for b, which is not in namespaces: no adapter there is served",
    ),
    "pushes and two replicas": (
        ["push.enabled=true", "replicas=2"],
        "push.enabled is true and replicas is 2: pushes are kept by one replica; set replicas to 1",
    ),
    "pushes without a certificate": (
        ["push.enabled=true", "tls.mode=none"],
        "push.enabled is true and tls.mode is none: name the Secret with the certificate",
    ),
    "names for a given certificate": (
        ["push.tls.secret=mine", "push.tls.names={a}"],
        "push.tls.names are for a certificate that is made, but push.tls.secret is mine",
    ),
    "more for a namespace than for all": (
        ["push.limits.bytes=2000000"],
        "push.limits.namespaceBytes is 17179869184, more than push.limits.bytes with 2000000",
    ),
    "no audience": (["push.audience="], "at '/push/audience': minLength: got 0, want 1"),
}
LACKING = {
    "no cert-manager": (
        CERT_MANAGER,
        "the cluster has no cert-manager.io/v1 Certificate: install cert-manager first",
    ),
    "no Prometheus operator for monitors": (
        ["metrics.podMonitor.enabled=true"],
        "the cluster has no monitoring.coreos.com/v1 PodMonitor: install the Prometheus operator",
    ),
    "no Prometheus operator for alerts": (
        ["alerts.enabled=true"],
        "the cluster has no monitoring.coreos.com/v1 PrometheusRule: install the Prometheus operator",
    ),
}


def told(said: str) -> list[str]:
    """Return the lines of a refusal that say what is wrong."""
    lines = said.replace("Use --debug flag to render out invalid YAML", "").splitlines()
    heading = ("Error: values don't meet the specifications", "lorafleet:")
    return [line for line in lines if line.strip() and not line.startswith(heading)]


@pytest.mark.parametrize("case", WRONG)
def test_wrong_values_are_refused_with_one_line(case: str) -> None:
    values, line = WRONG[case]
    apis = ["cert-manager.io/v1/Certificate"]
    with pytest.raises(HelmFailed) as refusal:
        rendered(*values, apis=apis)
    (said,) = told(str(refusal.value))
    assert line in said


@pytest.mark.parametrize("release", ["2024", "team.a"])
def test_a_release_whose_service_could_not_be_called_so_is_refused_with_pushes(
    release: str,
) -> None:
    with pytest.raises(HelmFailed) as refusal:
        rendered("push.enabled=true", release=release)
    (said,) = told(str(refusal.value))
    assert f"the release is called {release}, but a Service cannot be called {release}-push" in said
    rendered(release=release)


@pytest.mark.parametrize("case", LACKING)
def test_what_the_cluster_lacks_is_named_in_one_line(case: str) -> None:
    values, line = LACKING[case]
    with pytest.raises(HelmFailed) as refusal:
        rendered(*values)
    (said,) = told(str(refusal.value))
    assert line in said
