"""The chart's policies on a real API server, and the pods that controllers would make of manifests."""

from __future__ import annotations

import copy
import re
import time
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from helm import CHART, given, helm
from kube_rest import Refused
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kube_rest import Json, KubeRest

MANIFESTS = Path(__file__).with_name("vllm_manifests")
POOL = "lorafleet.dev/engine-pool"
SIDECAR = "lorafleet-sidecar"
POLICIES = ("injection", "injection-checks")
_PROBE = {
    "metadata": {"generateName": "probe-", "labels": {POOL: "probe"}},
    "spec": {
        "containers": [{"name": "vllm", "image": "x/vllm-openai:1", "args": ["--enable-lora"]}]
    },
}
_GROUP = "/apis/admissionregistration.k8s.io/v1"
_PLURALS = {
    "MutatingAdmissionPolicy": "mutatingadmissionpolicies",
    "MutatingAdmissionPolicyBinding": "mutatingadmissionpolicybindings",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}


def rendered(
    *values: str,
    only: Sequence[str] = POLICIES,
    more: Sequence[str] = (),
    release: str = "inj",
) -> list[Json]:
    """Return the documents of single templates; `more` are further arguments of Helm."""
    text = helm("template", release, CHART, "-n", "system", *given(values), *more)
    wanted = tuple(f"# Source: lorafleet/templates/{template}.yaml\n" for template in only)
    parts = [part.removeprefix("---\n") for part in re.split(r"(?m)^(?=---$)", text)]
    return [yaml.safe_load(part) for part in parts if part.startswith(wanted)]


@contextmanager
def installed(kube: KubeRest, *values: str) -> Iterator[tuple[str, str]]:
    """Let the policies hold in two namespaces, one restricted, one not; yields their names."""
    suffix = uuid.uuid4().hex[:6]
    restricted, privileged = f"restricted-{suffix}", f"privileged-{suffix}"
    for name in (restricted, privileged):
        level = {"pod-security.kubernetes.io/enforce": name.partition("-")[0]}
        kube.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": level}})
    made: list[tuple[str, Json]] = [
        (
            "/apis/node.k8s.io/v1/runtimeclasses",
            {"metadata": {"name": "nvidia"}, "handler": "nvidia"},
        )
    ]
    names = f'namespaces:=["{restricted}","{privileged}"]'
    made += _policies(names, *values)
    with _there(kube, made):
        _wait(kube, privileged)
        yield restricted, privileged
    for name in (restricted, privileged):
        kube.delete(f"/api/v1/namespaces/{name}")


@contextmanager
def another_release(kube: KubeRest, shared: str, own: str, *values: str) -> Iterator[None]:
    """Let the policies of a second release hold too, in a namespace of the first and one of its own."""
    names = f'namespaces:=["{shared}","{own}"]'
    with _there(kube, _policies(names, *values, release="other")):
        _wait(kube, own)
        yield
    eventually(lambda: "initContainers" not in create(kube, own, _PROBE)[0]["spec"])


def _policies(*values: str, release: str = "inj") -> list[tuple[str, Json]]:
    found = rendered(*values, release=release)
    return [(f"{_GROUP}/{_PLURALS[each['kind']]}", each) for each in found]


@contextmanager
def _there(kube: KubeRest, made: list[tuple[str, Json]]) -> Iterator[None]:
    """Have objects at the API server meanwhile: pairs of a path and a body."""
    done = []
    try:
        for path, document in made:
            kube.create(path, document)
            done.append(f"{path}/{document['metadata']['name']}")
        yield
    finally:
        for place in done:
            kube.delete(place)


def _wait(kube: KubeRest, namespace: str) -> None:
    """The API server takes a moment to know its policies: all of them, the last made one too."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        made, warnings = create(kube, namespace, _PROBE)
        if "initContainers" in made["spec"] and warnings:
            return
        time.sleep(0.1)
    raise AssertionError("the policies do not come into force")


def create(kube: KubeRest, namespace: str, body: Json) -> tuple[Json, list[str]]:
    """Create a pod; return it and what the API server warns of. Raises Refused."""
    return create_at(kube, f"/api/v1/namespaces/{namespace}/pods", body)


def create_at(kube: KubeRest, path: str, body: Json) -> tuple[Json, list[str]]:
    """The same for any resource."""
    answer = kube.client.post(path, params={"fieldValidation": "Strict"}, json=body)
    if not answer.is_success:
        raise Refused(answer)
    warnings = [
        value.removeprefix('299 - "').removesuffix('"').split("': ", 1)[-1]
        for value in answer.headers.get_list("warning")
    ]
    return answer.json(), warnings


def manifest(name: str) -> Json:
    """Return one of the manifests."""
    found: Json = yaml.safe_load((MANIFESTS / f"{name}.yaml").read_text())
    return found


def pod_of(document: Json, **metadata: Any) -> Json:
    """Return the first pod that the workload's controller makes; `metadata` adds labels and so on."""
    spec = document["spec"]
    if document["kind"] == "Pod":
        template = document
    elif document["kind"] == "LeaderWorkerSet":
        template = spec["leaderWorkerTemplate"]["leaderTemplate"]
    else:
        template = spec["template"]
    found = copy.deepcopy({key: template[key] for key in ("metadata", "spec")})
    found["metadata"].pop("name", None)
    found["metadata"]["generateName"] = f"{document['metadata']['name']}-"
    for claim in spec.get("volumeClaimTemplates", []):
        name = claim["metadata"]["name"]
        volume = {"name": name, "persistentVolumeClaim": {"claimName": f"{name}-0"}}
        found["spec"].setdefault("volumes", []).append(volume)
    for key, values in metadata.items():
        found["metadata"][key] = found["metadata"].get(key, {}) | values
    return found
