"""Every command of docs/install.md and of README, as it stands there, on a real API server."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from certificates import Authority
from cluster_fixture import refused_finalizers
from kube_rest import CRDS
from localcluster import find_binary

if TYPE_CHECKING:
    from collections.abc import Iterator

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


@pytest.fixture
def checkout(bare: LocalCluster, bare_kube: KubeRest, tmp_path: Path) -> Iterator[Path]:
    """A folder with the chart, as a checkout has it; afterwards the API server is as it was."""
    shutil.copytree(REPOSITORY / "charts", tmp_path / "charts")
    (tmp_path / "crds").symlink_to("charts/lorafleet/files/crds")
    yield tmp_path
    for pod in bare_kube.get("/api/v1/pods")["items"]:  # those of `helm test` stay, for their logs
        place = f"{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
        bare_kube.delete(f"/api/v1/namespaces/{place}?gracePeriodSeconds=0")
    for item in bare_kube.get(CRDS)["items"]:
        if item["spec"]["group"] == "lorafleet.dev":
            bare_kube.remove_crd(item["metadata"]["name"])


def run(command: str, checkout: Path, bare: LocalCluster) -> str:
    """Run one command, or several lines of them; return what it prints."""
    folders = {find_binary(name).parent for name in ("helm", "kubectl")}
    env = {
        "PATH": ":".join([*map(str, folders), os.environ["PATH"]]),
        "KUBECONFIG": str(bare.kubeconfig),
        "HOME": str(checkout),
    }
    ended = subprocess.run(
        ["bash", "-ec", command],
        cwd=checkout,
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ended.returncode == 0, f"{command}\n{ended.stdout}{ended.stderr}"
    return ended.stdout + ended.stderr


def test_every_command_of_the_page_works_in_its_order(
    bare: LocalCluster, bare_kube: KubeRest, checkout: Path
) -> None:
    for document in yaml.safe_load_all(FOREIGN.read_text()):
        bare_kube.install_crd(document)
    Authority("fleet").write(checkout, "operator", "operator.lorafleet")
    found = commands()
    assert len(found) >= 15
    refused = refused_finalizers(bare, ".lorafleet.dev")
    for command in found:
        tester = PodsEndWell(bare_kube, command) if command.startswith("helm test") else None
        if tester:
            tester.start()
        try:
            run(command, checkout, bare)
        finally:
            if tester:
                tester.end()
    now = refused_finalizers(bare, ".lorafleet.dev")
    assert now == refused, (
        "a definition was deleted that nobody had looked into: it may stay for minutes"
    )


def test_the_commands_of_the_readme_bring_a_fleet_to_a_cluster(
    bare: LocalCluster, bare_kube: KubeRest, checkout: Path
) -> None:
    """What comes of them when kubelets run it is the walk's (hack/walk)."""
    section = (REPOSITORY / "README.md").read_text().split("## On a real cluster", 1)[1]
    block = section.split("```", 2)[1]
    # Of this API server a namespace does not go again, and the other page has this one.
    for file in (checkout / "charts/lorafleet/examples").iterdir():
        file.write_text(file.read_text().replace("namespace: demo", "namespace: readme"))
    said = run(re.sub(r"\bdemo\b", "readme", block), checkout, bare)
    assert "Warning" not in said, "the examples are what the checks of the chart want"
    for made in (
        "enginepool.lorafleet.dev/smollm2",
        "deployment.apps/smollm2",
        "secret/s3-credentials",
    ):
        assert f"{made} created" in said
    assert re.search(r"(?m)^readme +loraadapter.lorafleet.dev/pirate ", said)
    run("kubectl delete lora,lpool,deploy --all -n readme", checkout, bare)
    run("helm uninstall lorafleet -n lorafleet-system", checkout, bare)
