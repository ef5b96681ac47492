"""The Kubernetes API as plain JSON over HTTP: tests assert what the server says, word by word."""

from __future__ import annotations

import ssl
import time
from typing import TYPE_CHECKING, Any, Self

import httpx
from kubernetes import config
from waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

Json = dict[str, Any]

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
SECONDS = 60


class Refused(AssertionError):
    """The server's refusal: `status` and, for 422, one message for each cause."""

    def __init__(self, response: httpx.Response) -> None:
        body = response.json()
        self.status = response.status_code
        self.causes = [c.get("message", "") for c in body.get("details", {}).get("causes", [])]
        super().__init__(f"{response.status_code}: {body.get('message')}")


class KubeRest:
    """A session with the API server of a kubeconfig."""

    def __init__(self, kubeconfig: Path) -> None:
        given = config.new_client_from_config(str(kubeconfig)).configuration
        context = ssl.create_default_context(cafile=given.ssl_ca_cert)
        if given.cert_file:
            context.load_cert_chain(given.cert_file, given.key_file)
        headers = {each["key"]: each["value"] for each in given.auth_settings().values()}
        self.client = httpx.Client(
            base_url=given.host, verify=context, headers=headers, timeout=SECONDS
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def create(self, path: str, body: Json) -> Json:
        """POST with strict field validation: an unknown field is an error."""
        return _answer(self.client.post(path, params={"fieldValidation": "Strict"}, json=body))

    def get(self, path: str, accept: str = "application/json") -> Json:
        return _answer(self.client.get(path, headers={"Accept": accept}))

    def merge(self, path: str, body: Json) -> Json:
        """PATCH with a JSON merge patch."""
        headers = {"Content-Type": "application/merge-patch+json"}
        return _answer(self.client.patch(path, json=body, headers=headers))

    def delete(self, path: str) -> Json:
        return _answer(self.client.delete(path))

    def install_crd(self, document: Json) -> Json:
        """Server-side apply a CRD and return it when it is established and served."""
        name = document["metadata"]["name"]
        _answer(
            self.client.patch(
                f"{CRDS}/{name}",
                params={"fieldManager": "tests", "force": "true", "fieldValidation": "Strict"},
                json=document,
                headers={"Content-Type": "application/apply-patch+yaml"},
            )
        )
        spec = document["spec"]
        served = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
        deadline = time.monotonic() + SECONDS
        while True:
            found = self.get(f"{CRDS}/{name}")
            conditions = {c["type"]: c["status"] for c in found["status"].get("conditions") or []}
            if conditions.get("Established") == "True" and self.client.get(served).is_success:
                return found
            assert time.monotonic() < deadline, f"{name} is not established: {conditions}"
            time.sleep(0.05)

    def warm_crd(self, name: str) -> None:
        """Ask for a CRD's objects until the server answers, so that the CRD goes at once when it is deleted.

        A server starts the cache of a CRD's objects when they are first asked for, and refuses until it
        runs. If the first who asks is its own finalizer, that tries again within milliseconds and may then
        meet the CRD as its own last try has changed it: it drops the CRD, for up to five minutes.
        """
        answer = self.client.get(f"{CRDS}/{name}")
        if answer.status_code == 404:
            return
        spec = _answer(answer)["spec"]
        (stored,) = (each["name"] for each in spec["versions"] if each["storage"])
        # Without a limit: with one the server would answer from etcd before the cache runs.
        objects = f"/apis/{spec['group']}/{stored}/{spec['names']['plural']}"
        eventually(
            lambda: self.client.get(objects).is_success or self._is_gone(name),
            what=f"{name} is not served",
        )

    def remove_crd(self, name: str) -> None:
        """Delete a CRD with all of its objects and return when it is gone; none is right too."""
        self.warm_crd(name)
        answer = self.client.delete(f"{CRDS}/{name}")
        if answer.status_code != 404:
            _answer(answer)
        eventually(lambda: self._is_gone(name), what=f"{name} stays")

    def _is_gone(self, name: str) -> bool:
        return self.client.get(f"{CRDS}/{name}").status_code == 404


def _answer(response: httpx.Response) -> Json:
    if not response.is_success:
        raise Refused(response)
    answer: Json = response.json()
    return answer
