"""The chart's certificates: operator and sidecar meet by them, upgrades keep them, wrong ones are named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from certificates import Authority
from chart_release import Release
from helm import HelmFailed
from lorafleet_operator.settings import OperatorSettings
from operator_chain import Chain
from pod_process import PodProcess, pod_of, write_secret
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kube_rest import KubeRest
    from localcluster import LocalCluster

PLAIN = ("crds.enabled=false", "injection.enabled=false", "settings.RESYNC_SECONDS=1")


@pytest.fixture
def chain(cluster: LocalCluster, namespace: str, tmp_path: Path) -> Iterator[Chain]:
    chain = Chain(cluster.kubeconfig, tmp_path, namespace)
    try:
        yield chain
    finally:
        chain.stop()


def secret(kube: KubeRest, namespace: str, name: str) -> dict[str, str]:
    data: dict[str, str] = kube.get(f"/api/v1/namespaces/{namespace}/secrets/{name}")["data"]
    return data


def test_operator_and_sidecar_meet_by_the_charts_certificates_which_upgrades_keep(
    chain: Chain, cluster: LocalCluster, kube: KubeRest, namespace: str, system: str, tmp_path: Path
) -> None:
    volume = f'volumes:=[{{"namespace": "{namespace}", "claimName": "claim"}}]'
    values = (*PLAIN, f"namespaces={{{namespace}}}", volume, "settings.LEASE_SECONDS=2")
    release = Release(kube, cluster.kubeconfig, system, *values)
    said = release.install()
    assert f"The sidecars' certificates are in Secret lorafleet-sidecar of {namespace}." in said
    places = [(system, "lorafleet-authority"), (system, "lorafleet-tls")]
    places += [(namespace, "lorafleet-sidecar")]
    first = [secret(kube, *place) for place in places]

    mounted = tmp_path / "sidecar-tls"
    write_secret(kube, namespace, "lorafleet-sidecar", mounted)
    peer = f"{namespace}.engines.lorafleet"
    chain.start_engine("engine-0", 0, LORAFLEET_TLS_DIR=str(mounted), LORAFLEET_PEER_NAME=peer)
    chain.pool()
    chain.adapter("sql")
    release.start_operator(chain.stack, {"/volumes": chain.root})
    eventually(lambda: chain.ready("sql"))
    assert "ok: certificates: tls.crt is good until 20" in release.test(chain.stack)

    release.install("replicas=2")
    assert [secret(kube, *place) for place in places] == first, "an upgrade keeps them"
    # A person who wants a new authority deletes the old one's Secret.
    kube.delete(f"/api/v1/namespaces/{system}/secrets/lorafleet-authority")
    release.install()
    renewed = [secret(kube, *place) for place in places]
    assert all(new["tls.crt"] != old["tls.crt"] for new, old in zip(renewed, first, strict=True))
    assert {each["ca.crt"] for each in renewed[1:]} == {renewed[0]["tls.crt"]}
    release.uninstall()


def test_a_namespace_of_engines_that_is_not_there_is_named_before_anything_is_made(
    cluster: LocalCluster, kube: KubeRest, namespace: str, system: str
) -> None:
    release = Release(kube, cluster.kubeconfig, system, *PLAIN)
    with pytest.raises(HelmFailed) as refusal:
        release.install(f"tls.engineNamespaces={{{namespace},{namespace}-typo}}")
    assert (
        f"tls.engineNamespaces has {namespace}-typo, and the cluster has no such namespace: create it "
        "first" in str(refusal.value)
    )
    accounts = kube.get(f"/api/v1/namespaces/{system}/serviceaccounts")["items"]
    assert "lorafleet" not in {each["metadata"]["name"] for each in accounts}
    # The release's own is made with the release, and may be one of engines too.
    release.install(f"tls.engineNamespaces={{{namespace},{system}}}")
    release.uninstall()


def test_an_authority_that_is_none_is_named_and_what_to_do(
    cluster: LocalCluster, kube: KubeRest, namespace: str, system: str
) -> None:
    body = {"metadata": {"name": "lorafleet-authority"}, "stringData": {"ca.crt": "mine"}}
    kube.create(f"/api/v1/namespaces/{system}/secrets", body)
    release = Release(kube, cluster.kubeconfig, system, *PLAIN)
    with pytest.raises(HelmFailed) as refusal:
        release.install(f"tls.engineNamespaces={{{namespace}}}")
    line = (
        f"Secret {system}/lorafleet-authority has no tls.crt and tls.key of an authority: delete it"
    )
    assert line in str(refusal.value)


def test_a_fleet_that_was_left_loaded_is_found_by_the_next_install_with_another_authority(
    chain: Chain, cluster: LocalCluster, kube: KubeRest, namespace: str, system: str, tmp_path: Path
) -> None:
    """Uninstalled while adapters were served; definitions, adapters and engines stay as they are."""
    volume = f'volumes:=[{{"namespace": "{namespace}", "claimName": "claim"}}]'
    values = (*PLAIN, f"tls.engineNamespaces={{{namespace}}}", volume, "settings.LEASE_SECONDS=2")
    release = Release(kube, cluster.kubeconfig, system, *values)
    release.install()
    mounted = tmp_path / "sidecar-tls"
    write_secret(kube, namespace, "lorafleet-sidecar", mounted)
    peer = f"{namespace}.engines.lorafleet"
    chain.start_engine("engine-0", 0, LORAFLEET_TLS_DIR=str(mounted), LORAFLEET_PEER_NAME=peer)
    chain.pool()
    chain.adapter("sql")
    operator, _ = release.start_operator(chain.stack, {"/volumes": chain.root})
    eventually(lambda: chain.ready("sql"))
    release.uninstall()
    operator.popen.terminate()
    operator.popen.wait(60)
    served = (chain.answer("engine-0", f"{namespace}/sql"), chain.loads("engine-0"))
    assert served[0], "what is served stays"

    chain.put_source("sql", "d02-all-fp32")
    release.install()
    release.start_operator(chain.stack, {"/volumes": chain.root})
    eventually(lambda: chain.condition("sql", "Ready")[0] != "True")
    # The kubelet brings the new certificates a while later.
    write_secret(kube, namespace, "lorafleet-sidecar", mounted)
    eventually(lambda: chain.ready("sql") and chain.loads("engine-0") == served[1] + 1)
    assert chain.answer("engine-0", f"{namespace}/sql") not in ("", served[0])
    chain.delete("loraadapters", "sql")
    eventually(lambda: not chain.exists("sql"))
    assert chain.served("engine-0") == set()
    release.uninstall()


def test_what_is_wrong_with_given_certificates_is_said_in_one_line_at_the_start(
    cluster: LocalCluster, kube: KubeRest, namespace: str, system: str, tmp_path: Path
) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    Authority("fleet").write(own, "operator", "operator.lorafleet")
    Authority("other").write(other, "operator", "operator.lorafleet")
    texts = {name: (own / name).read_text() for name in ("tls.crt", "tls.key", "ca.crt")}
    texts["tls.key"] = (other / "tls.key").read_text()
    body = {"metadata": {"name": "mine"}, "stringData": texts}
    kube.create(f"/api/v1/namespaces/{system}/secrets", body)
    values = (*PLAIN, "tls.mode=secret", "tls.secret=mine", f"namespaces={{{namespace}}}")
    release = Release(kube, cluster.kubeconfig, system, *values)
    release.install()
    place = f"/apis/apps/v1/namespaces/{system}/deployments/lorafleet"
    pod = pod_of(kube.get(place), "lorafleet-1")
    made = PodProcess(kube, cluster.kubeconfig, tmp_path / "pod", pod)
    for verb, code in (("run", 2), ("check", 1)):
        ended = subprocess.run(
            [Path(sys.executable).parent / made.command[0], verb],
            env=made.environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ended.returncode == code
        assert ended.stderr.count("\n") == 1, ended.stderr
        assert "tls.key is not the key of tls.crt" in ended.stderr
    release.uninstall()


def test_the_chart_makes_every_setting_that_its_values_leave_out(
    cluster: LocalCluster, kube: KubeRest, namespace: str, system: str, tmp_path: Path
) -> None:
    """What the Deployment sets is what the operator reads."""
    release = Release(
        kube, cluster.kubeconfig, system, *PLAIN, "tls.mode=none", "shards=3", "namespaces={a,b}"
    )
    with pytest.raises(AssertionError, match='namespaces "a" not found'):
        release.install()
    release = Release(
        kube, cluster.kubeconfig, system, *PLAIN, "tls.mode=none", "shards=3",
        f"namespaces={{{namespace}}}", name="other",
    )  # fmt: skip
    release.install()
    place = f"/apis/apps/v1/namespaces/{system}/deployments/other"
    pod = pod_of(kube.get(place), "other-1")
    made = PodProcess(kube, cluster.kubeconfig, tmp_path / "pod", pod).environment()
    settings = OperatorSettings.from_environ(made)
    assert settings.namespaces == (namespace,)
    assert (settings.shards, settings.lease_name, settings.identity) == (3, "other", "other-1")
    assert settings.lease_namespace == system
    assert settings.resync_seconds == 1
    release.uninstall()
