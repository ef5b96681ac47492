"""The local cluster itself: up and down as commands, somebody else's cluster, pods without nodes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from enginepods import EnginePods
from kube_rest import KubeRest, Refused
from localcluster import ClusterFailed, LocalCluster, find_binary

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def own_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LORAFLEET_USE_KUBECONFIG", raising=False)


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, REPOSITORY / "hack" / "localcluster.py", *arguments],
        capture_output=True,
        text=True,
        timeout=180,
    )


def processes_of(directory: Path) -> list[str]:
    """Command lines of processes that were started for `directory`, but for this one."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            line = (entry / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue  # ended meanwhile
        if str(directory) in line:
            found.append(line)
    return found


@pytest.fixture
def up(tmp_path: Path, own_cluster: None) -> Iterator[Path]:
    directory = tmp_path / "cluster"
    started = command("up", directory)
    assert started.returncode == 0, started.stderr
    assert started.stdout == f"export KUBECONFIG={directory}/kubeconfig\n"
    yield directory
    command("down", directory)


def test_up_leaves_a_cluster_and_down_ends_it(up: Path) -> None:
    with KubeRest(up / "kubeconfig") as kube:
        assert kube.get("/version")["major"] == "1"
    assert (up / "kubeconfig").stat().st_mode & 0o077 == 0
    assert len(processes_of(up)) == 2
    again = command("up", up)
    assert again.returncode == 1
    assert again.stderr == f"cluster: {up} holds a cluster: take it down first\n"
    assert command("down", up).stdout == "stopped 2 processes\n"
    assert processes_of(up) == []
    assert command("down", up).stdout == "stopped 0 processes\n"


def test_any_kubeconfig_works_instead(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LORAFLEET_USE_KUBECONFIG", "1")
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    with LocalCluster(tmp_path / "none") as borrowed:
        assert borrowed.borrowed
        assert borrowed.kubeconfig == cluster.kubeconfig.resolve()
    assert not (tmp_path / "none").exists()
    with KubeRest(cluster.kubeconfig) as kube:
        assert kube.get("/version")["major"] == "1"


def test_a_kubeconfig_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LORAFLEET_USE_KUBECONFIG", "1")
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    with pytest.raises(ClusterFailed, match="KUBECONFIG is '/nowhere', expected a file"):
        LocalCluster(tmp_path).start()


def test_a_missing_binary_names_the_command_that_builds_it() -> None:
    with pytest.raises(
        ClusterFailed, match=r"nothing-of-that-name is not here: run hack/build-binaries"
    ):
        find_binary("nothing-of-that-name")


def test_binaries_of_the_usual_test_folder_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    (tmp_path / "etcd").write_text("")
    (tmp_path / "etcd").chmod(0o755)
    assert find_binary("etcd") == tmp_path / "etcd"


def test_authorization_is_on(cluster: LocalCluster, kube: KubeRest, namespace: str) -> None:
    account = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    kube.create(account, {"metadata": {"name": "nobody"}})
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = kube.create(f"{account}/nobody/token", request)["status"]["token"]
    with KubeRest(cluster.kubeconfig) as other:
        other.client.headers["Authorization"] = f"Bearer {token}"
        with pytest.raises(Refused) as refusal:
            other.get(f"/apis/lorafleet.dev/v1alpha1/namespaces/{namespace}/loraadapters")
    assert refusal.value.status == 403


def test_engine_pods_report_like_running_ones(
    cluster: LocalCluster, kube: KubeRest, namespace: str
) -> None:
    pods = EnginePods(cluster.kubeconfig, namespace)
    uid = pods.create("engine-0", "127.0.0.2", {"app": "vllm"}, node="node-a")
    where = f"/api/v1/namespaces/{namespace}/pods/engine-0"
    pod = kube.get(where)
    assert pod["metadata"]["uid"] == uid
    assert (pod["status"]["phase"], pod["status"]["podIP"]) == ("Running", "127.0.0.2")
    (vllm,) = pod["status"]["containerStatuses"]
    assert (vllm["name"], vllm["restartCount"]) == ("vllm", 0)
    assert vllm["state"]["running"]["startedAt"]

    pods.restarted("engine-0")
    pods.moved("engine-0", "127.0.0.3")
    pod = kube.get(where)
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 1
    assert pod["status"]["podIPs"] == [{"ip": "127.0.0.3"}]
    assert pod["metadata"]["uid"] == uid

    pods.delete("engine-0")
    with pytest.raises(Refused) as refusal:
        kube.get(where)
    assert refusal.value.status == 404
