"""What a kubelet makes of a pod, for tests without one: its container's command as a real process, with its
environment, its Secrets as files, and a token of its service account and no other rights."""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, Any

from chart_role import kubeconfig

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kube_rest import KubeRest

Json = dict[str, Any]


class PodProcess:
    """The command and the environment of a pod's only container; `folder` holds what it would mount.

    mounts: paths in the pod -> folders that stand for them, beside those of Secrets.
    """

    def __init__(
        self,
        kube: KubeRest,
        administrator: Path,
        folder: Path,
        pod: Json,
        mounts: Mapping[str, Path] | None = None,
    ) -> None:
        (self._container,) = pod["spec"]["containers"]
        self._pod, self._kube = pod, kube
        self.command: list[str] = self._container["command"]
        folder.mkdir(parents=True, exist_ok=True)
        token = self._token(pod["spec"]["serviceAccountName"])
        self._kubeconfig = kubeconfig(administrator, folder / "kubeconfig", token)
        self._mounts = {**(mounts or {}), **self._secrets(folder)}

    def environment(self, **instead: str) -> dict[str, str]:
        """The variables of the container; those `instead` are what only this machine asks for."""
        fields = {
            "metadata.name": self._pod["metadata"]["name"],
            "metadata.namespace": self._pod["metadata"]["namespace"],
        }
        found = {"KUBECONFIG": str(self._kubeconfig)}
        for each in self._container["env"]:
            value = each.get("value", "")
            if "valueFrom" in each:
                value = fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
            value = re.sub(r"\$\((\w+)\)", lambda name: found[name[1]], value)
            found[each["name"]] = str(self._mounts.get(value, value))
        return {**found, **instead}

    def _token(self, account: str) -> str:
        place = f"/api/v1/namespaces/{self._pod['metadata']['namespace']}/serviceaccounts/{account}"
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        return str(self._kube.create(f"{place}/token", asked)["status"]["token"])

    def _secrets(self, folder: Path) -> dict[str, Path]:
        found = {}
        volumes = {each["name"]: each for each in self._pod["spec"].get("volumes", ())}
        for mount in self._container.get("volumeMounts", ()):
            secret = volumes[mount["name"]].get("secret")
            if secret:
                found[mount["mountPath"]] = folder / mount["name"]
                self.write_secret(secret["secretName"], folder / mount["name"])
        return found

    def write_secret(self, name: str, folder: Path) -> None:
        """Write the data of a Secret of the pod's namespace as files."""
        write_secret(self._kube, self._pod["metadata"]["namespace"], name, folder)


def write_secret(kube: KubeRest, namespace: str, name: str, folder: Path) -> None:
    """Write the data of a Secret as files, as the kubelet mounts it."""
    folder.mkdir(parents=True, exist_ok=True)
    secret = kube.get(f"/api/v1/namespaces/{namespace}/secrets/{name}")
    for key, value in secret["data"].items():
        (folder / key).write_bytes(base64.b64decode(value))


def pod_of(deployment: Json, name: str) -> Json:
    """Return the pod that a Deployment would have, as its controller names it."""
    template = json.loads(json.dumps(deployment["spec"]["template"]))
    metadata = {**template["metadata"], "namespace": deployment["metadata"]["namespace"]}
    return {"metadata": {**metadata, "name": name}, "spec": template["spec"]}
