"""What a person does with kubectl: apply, get, delete, wait. Needs a kubeconfig, not kubectl."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from kubernetes import config
from kubernetes.client.exceptions import ApiException

from demo.screen import table

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_PATHS = {
    "Namespace": "/api/v1/namespaces",
    "Secret": "/api/v1/namespaces/{namespace}/secrets",
    "Pod": "/api/v1/namespaces/{namespace}/pods",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "EnginePool": "/apis/lorafleet.dev/v1alpha1/namespaces/{namespace}/enginepools",
    "LoRAAdapter": "/apis/lorafleet.dev/v1alpha1/namespaces/{namespace}/loraadapters",
}
_AS_TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


class NotReached(RuntimeError):
    """Raised when an object does not get where it should in time; names it and its conditions."""


class Cluster:
    """One namespace of one cluster."""

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        self._api = config.new_client_from_config(str(kubeconfig))
        self.namespace = namespace

    def apply(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """Server-side apply; the object as stored."""
        path = f"{self._path(manifest['kind'])}/{manifest['metadata']['name']}"
        query = [("fieldManager", "demo"), ("force", "true")]
        return self._call(
            "PATCH", path, body=manifest, query=query, content="application/apply-patch+yaml"
        )

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """The object, None if there is none."""
        try:
            return self._call("GET", f"{self._path(kind)}/{name}")
        except ApiException as error:
            if error.status == 404:
                return None
            raise

    def delete(self, kind: str, name: str) -> None:
        """Ask for the object's deletion; finalizers may take their time."""
        self._call("DELETE", f"{self._path(kind)}/{name}")

    def show(self, kind: str) -> None:
        """Print the table that `kubectl get` prints: the API server makes it."""
        answer = self._call("GET", self._path(kind), accept=_AS_TABLE)
        columns = answer["columnDefinitions"]
        shown = [at for at, column in enumerate(columns) if column.get("priority", 0) == 0]
        rows = [["" if row["cells"][at] is None else row["cells"][at] for at in shown]
                for row in answer.get("rows") or []]  # fmt: skip
        table([str(columns[at]["name"]).upper() for at in shown], rows)

    def wait(
        self,
        kind: str,
        name: str,
        reached: Callable[[dict[str, Any] | None], bool],
        what: str,
        seconds: float = 120,
    ) -> dict[str, Any] | None:
        """The object once `reached` holds of it (None: it is gone)."""
        deadline = time.monotonic() + seconds
        while True:
            found = self.get(kind, name)
            if reached(found):
                return found
            if time.monotonic() > deadline:
                raise NotReached(
                    f"{kind} {self.namespace}/{name} is not {what} after {seconds:.0f} s: "
                    f"{conditions(found)}"
                )
            time.sleep(0.2)

    def _path(self, kind: str) -> str:
        return _PATHS[kind].format(namespace=self.namespace)

    def _call(
        self,
        method: str,
        path: str,
        *,
        body: dict[str, Any] | None = None,
        query: list[tuple[str, str]] | None = None,
        content: str = "application/json",
        accept: str = "application/json",
    ) -> dict[str, Any]:
        request = self._api.param_serialize(
            method,
            path,
            query_params=query or [],
            header_params={"Accept": accept, "Content-Type": content},
            body=body,
            auth_settings=["BearerToken"],
        )
        response = self._api.call_api(*request, _request_timeout=30)
        data = response.read()
        if response.status >= 400:
            raise ApiException(status=response.status, reason=data.decode(errors="replace")[:300])
        answer: dict[str, Any] = json.loads(data) if data else {}
        return answer


def conditions(found: dict[str, Any] | None) -> str:
    """The conditions of an object in one line."""
    if found is None:
        return "it does not exist"
    listed = found.get("status", {}).get("conditions") or []
    return (
        "; ".join(
            f"{each['type']}={each['status']} {each.get('reason', '')}: {each.get('message', '')}"
            for each in listed
        )
        or "it has no conditions yet"
    )


def ready(found: dict[str, Any] | None) -> bool:
    """Whether the object's Ready condition is true for its newest spec."""
    if found is None:
        return False
    status = found.get("status", {})
    current = status.get("observedGeneration") == found["metadata"]["generation"]
    return current and any(
        each["type"] == "Ready" and each["status"] == "True"
        for each in status.get("conditions") or []
    )


def established(found: dict[str, Any] | None) -> bool:
    """Whether the API server serves the kind of a CustomResourceDefinition."""
    listed = (found or {}).get("status", {}).get("conditions") or []
    return any(each["type"] == "Established" and each["status"] == "True" for each in listed)
