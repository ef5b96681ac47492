"""A release of the chart on a real API server, by the real Helm, and its operator as a process here."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from helm import CHART, given, helm
from pod_process import PodProcess, pod_of
from processes import free_port

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kube_rest import KubeRest
    from localstack import LocalStack
    from processes import LocalProcess

BIN = Path(sys.executable).parent
SECONDS = 120


class Release:
    """One release, `name` in `namespace`; `values` are those of every install and upgrade."""

    def __init__(
        self,
        kube: KubeRest,
        kubeconfig: Path,
        namespace: str,
        *values: str,
        name: str = "lorafleet",
    ) -> None:
        self.kube, self.kubeconfig = kube, kubeconfig
        self.namespace, self.name, self.values = namespace, name, values
        self.pods = 0

    def install(self, *values: str, chart: Path = CHART) -> str:
        """Install or upgrade; return what Helm prints, the notes at its end."""
        place = ["upgrade", "--install", self.name, chart, "-n", self.namespace]
        return helm(*place, *given((*self.values, *values)), kubeconfig=self.kubeconfig)

    def uninstall(self) -> str:
        """Uninstall; return what Helm prints."""
        return helm("uninstall", self.name, "-n", self.namespace, kubeconfig=self.kubeconfig)

    def manifest(self) -> list[dict[str, Any]]:
        """The documents of the release as Helm keeps them."""
        text = helm("get", "manifest", self.name, "-n", self.namespace, kubeconfig=self.kubeconfig)
        return [each for each in yaml.safe_load_all(text) if each]

    def kinds(self) -> set[str]:
        """The kinds of what it has made."""
        return {each["kind"] for each in self.manifest()}

    def start_operator(
        self, stack: LocalStack, mounts: Mapping[str, Path] | None = None, **instead: str
    ) -> tuple[LocalProcess, str]:
        """Start what the Deployment at the API server says; return it and the URL of its server."""
        place = f"/apis/apps/v1/namespaces/{self.namespace}/deployments/{self.name}"
        self.pods += 1
        pod = pod_of(self.kube.get(place), f"{self.name}-{self.pods}")
        return self.start(stack, pod, mounts, **instead)

    def start(
        self,
        stack: LocalStack,
        pod: dict[str, Any],
        mounts: Mapping[str, Path] | None = None,
        **instead: str,
    ) -> tuple[LocalProcess, str]:
        """Start a pod's process; return it and the URL of the server that the operator has."""
        name = f"{self.namespace}-{pod['metadata']['name']}"
        made = PodProcess(self.kube, self.kubeconfig, stack.directory / name, pod, mounts)
        listen = f"127.0.0.1:{free_port()}"
        environment = made.environment(LORAFLEET_LISTEN=listen, **instead)
        program, *arguments = made.command
        process = stack.start(name, [BIN / program, *arguments], environment)
        return process, f"http://{listen}"

    def test(self, stack: LocalStack) -> str:
        """Run `helm test`; its pod is a process here. Return what the pod said."""
        said: list[str] = []
        pods = f"/api/v1/namespaces/{self.namespace}/pods"
        name = f"{self.name}-check"

        def run_pod() -> None:
            for _ in range(10 * SECONDS):
                if self.kube.client.get(f"{pods}/{name}").is_success:
                    break
                done.wait(0.1)
            pod = self.kube.get(f"{pods}/{name}")
            process, _ = self.start(stack, pod)
            code = process.popen.wait(SECONDS)
            said.append(process.log.read_text())
            phase = "Failed" if code else "Succeeded"
            self.kube.merge(f"{pods}/{name}/status", {"status": {"phase": phase}})

        done = threading.Event()
        kubelet = threading.Thread(target=run_pod)
        kubelet.start()
        try:
            helm(
                "test", self.name, "-n", self.namespace, "--timeout", "120s",
                kubeconfig=self.kubeconfig,
            )  # fmt: skip
        finally:
            done.set()
            kubelet.join()
        return said[0]
