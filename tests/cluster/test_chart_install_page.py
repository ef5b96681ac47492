"""Every command of docs/install.md, as it stands there, on a real API server."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from certificates import Authority
from kube_rest import CRDS
from localcluster import find_binary
from waiting import eventually

if TYPE_CHECKING:
    from kube_rest import KubeRest
    from localcluster import LocalCluster

REPOSITORY = Path(__file__).parents[2]
FOREIGN = REPOSITORY / "tests" / "foreign_crds.yaml"


def commands() -> list[str]:
    page = (REPOSITORY / "docs" / "install.md").read_text()
    blocks = re.findall(r"```sh\n(.*?)```", page, flags=re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


class PodsEndWell(threading.Thread):
    """Says of the pod of `helm test` that it has succeeded, for here no kubelet runs it."""

    def __init__(self, kube: KubeRest, command: str) -> None:
        super().__init__()
        _, _, release, _, namespace = command.split()
        self._kube, self._ended = kube, threading.Event()
        self._pod = f"/api/v1/namespaces/{namespace}/pods/{release}-check"

    def run(self) -> None:
        done = {"status": {"phase": "Succeeded"}}
        kind = {"Content-Type": "application/merge-patch+json"}
        while not self._ended.wait(0.1):
            if self._kube.client.patch(f"{self._pod}/status", json=done, headers=kind).is_success:
                return

    def end(self) -> None:
        self._ended.set()
        self.join()


def test_every_command_of_the_page_works_in_its_order(
    bare: LocalCluster, bare_kube: KubeRest, tmp_path: Path
) -> None:
    for document in yaml.safe_load_all(FOREIGN.read_text()):
        bare_kube.install_crd(document)
    for name in ("charts", "crds"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    Authority("fleet").write(tmp_path, "operator", "operator.lorafleet")
    folders = {find_binary(name).parent for name in ("helm", "kubectl")}
    env = {
        "PATH": ":".join([*map(str, folders), os.environ["PATH"]]),
        "KUBECONFIG": str(bare.kubeconfig),
        "HOME": str(tmp_path),
    }
    found = commands()
    assert len(found) >= 15
    for command in found:
        tester = PodsEndWell(bare_kube, command) if command.startswith("helm test") else None
        if tester:
            tester.start()
        ended = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=240,
        )
        if tester:
            tester.end()
        assert ended.returncode == 0, f"{command}\n{ended.stdout}{ended.stderr}"
    for pod in bare_kube.get("/api/v1/pods")["items"]:  # those of `helm test` stay, for their logs
        place = f"{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
        bare_kube.delete(f"/api/v1/namespaces/{place}?gracePeriodSeconds=0")
    for item in bare_kube.get(CRDS)["items"]:
        if item["spec"]["group"] == "lorafleet.dev":
            bare_kube.delete(f"{CRDS}/{item['metadata']['name']}")
            gone = f"{CRDS}/{item['metadata']['name']}"
            eventually(lambda place=gone: bare_kube.client.get(place).status_code == 404)
