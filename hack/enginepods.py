"""Pod objects for engines that run as local processes: there is no kubelet to make or report them.

pods = EnginePods(cluster.kubeconfig, "default")
uid = pods.create("engine-0", "127.0.0.2", {"app": "vllm"})
pods.restarted("engine-0")      # vLLM was started again
pods.delete("engine-0")
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

IMAGE = "local.invalid/process"  # nothing pulls it


class EnginePods:
    """The engine pods of one namespace, which is made if it does not exist."""

    def __init__(self, kubeconfig: Path, namespace: str = "default") -> None:
        self.namespace = namespace
        self.api = client.CoreV1Api(config.new_client_from_config(str(kubeconfig)))
        try:
            self.api.create_namespace({"metadata": {"name": namespace}})
        except ApiException as error:
            if error.status != 409:
                raise

    def create(
        self,
        name: str,
        address: str,
        labels: Mapping[str, str],
        *,
        container: str = "vllm",
        sidecar_port: int = 7070,
        node: str | None = None,
    ) -> str:
        """Create the pod, report it running at `address` and return its UID.

        A pod with a `node` is deleted by `delete` alone, since nobody confirms that it ended.
        """
        always = {"name": "sidecar", "image": IMAGE, "restartPolicy": "Always"}
        spec: dict[str, Any] = {
            "initContainers": [{**always, "ports": [{"containerPort": sidecar_port}]}],
            "containers": [{"name": container, "image": IMAGE}],
        }
        if node:
            spec["nodeName"] = node
        body = {"metadata": {"name": name, "labels": dict(labels)}, "spec": spec}
        uid: str = self.api.create_namespaced_pod(self.namespace, body).metadata.uid
        self._report(name, address, container, restarts=0)
        return uid

    def restarted(self, name: str) -> None:
        """Report that the engine's container was started again, just now."""
        pod = self.api.read_namespaced_pod(name, self.namespace)
        status = pod.status.container_statuses[0]
        self._report(name, pod.status.pod_ip, status.name, restarts=status.restart_count + 1)

    def moved(self, name: str, address: str) -> None:
        """Report another address for the pod."""
        pod = self.api.read_namespaced_pod(name, self.namespace)
        status = pod.status.container_statuses[0]
        self._report(name, address, status.name, restarts=status.restart_count)

    def delete(self, name: str) -> None:
        """Delete the pod at once, as if its node had confirmed its end."""
        self.api.delete_namespaced_pod(name, self.namespace, grace_period_seconds=0)

    def _report(self, name: str, address: str, container: str, *, restarts: int) -> None:
        """Write the status that a kubelet would write for a running pod."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        running = {
            "ready": True,
            "started": True,
            "image": IMAGE,
            "imageID": "",
            "state": {"running": {"startedAt": now}},
        }
        conditions = [
            {"type": type_, "status": "True", "lastTransitionTime": now}
            for type_ in ("Initialized", "ContainersReady", "Ready")
        ]
        status = {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"$patch": "replace"}, {"ip": address}],  # else merged by address
            "startTime": now,
            "conditions": conditions,
            "initContainerStatuses": [{**running, "name": "sidecar", "restartCount": 0}],
            "containerStatuses": [{**running, "name": container, "restartCount": restarts}],
        }
        self.api.patch_namespaced_pod_status(name, self.namespace, {"status": status})
