"""The snippet of the chart, applied by hand, makes the same pods as the policy, which leaves them alone."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from injection import MANIFESTS, SIDECAR, create, installed, manifest, pod_of, rendered
from localcluster import find_binary

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kube_rest import Json, KubeRest

VALUES = (
    'injection.arenas:={"opt":"1Gi"}',
    'injection.imagePullSecrets:=[{"name":"registry"}]',
    "injection.guaranteed=true",
)


@pytest.fixture(scope="module")
def namespaces(kube: KubeRest) -> Iterator[tuple[str, str]]:
    with installed(kube, *VALUES) as names:
        yield names


def patched(which: str, folder: Path, **snippet: str | int) -> Json:
    """Return the manifest with the rendered snippet as a strategic merge patch."""
    values = [f"injection.snippet.{key}={value}" for key, value in snippet.items()]
    [patch] = rendered(*VALUES, *values, only=("injection-snippet",))
    file = folder / "snippet.yaml"
    file.write_text(yaml.safe_dump(patch))
    command = [find_binary("kubectl"), "patch", "--local", "-f", MANIFESTS / f"{which}.yaml"]
    command += ["--type=strategic", "--patch-file", file, "-o", "json"]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    result: Json = json.loads(ended.stdout)
    return result


def unordered(thing: Any) -> Any:
    """The same with lists of named things in one order: a patch puts new ones anywhere."""
    if isinstance(thing, dict):
        return {key: unordered(value) for key, value in thing.items()}
    if isinstance(thing, list):
        items = [unordered(each) for each in thing]
        named = all(isinstance(each, dict) and "name" in each for each in items)
        return sorted(items, key=lambda each: each["name"]) if named else items
    return thing


@pytest.mark.parametrize(
    ("name", "snippet"),
    [
        ("deployment-plain", {"pool": "mistral-7b", "container": "mistral-7b"}),
        ("production-stack-sidecars", {"pool": "opt"}),
        (
            "statefulset",
            {"pool": "qwen3-moe", "container": "engine", "port": 9000, "kind": "StatefulSet"},
        ),
        ("pythonpath-literal", {"pool": "pythonpath", "pythonPath": "/opt/ours"}),
    ],
)
def test_a_workload_with_the_snippet_makes_the_pods_that_the_policy_makes(
    kube: KubeRest,
    namespaces: tuple[str, str],
    tmp_path: Path,
    name: str,
    snippet: dict[str, str | int],
) -> None:
    plain = manifest(name)
    injected, _ = create(kube, namespaces[1], pod_of(plain))
    by_hand = patched(name, tmp_path, name=plain["metadata"]["name"], **snippet)
    made, _ = create(kube, namespaces[1], pod_of(by_hand))
    assert [each["name"] for each in made["spec"]["initContainers"]].count(SIDECAR) == 1
    spec = made["spec"]
    if name == "pythonpath-literal":  # a patch does not look into values
        for container in spec["containers"]:
            container["env"] = [e for e in container["env"] if e["name"] != "VLLM_PLUGINS"]
        for container in injected["spec"]["containers"]:
            container["env"] = [e for e in container["env"] if e["name"] != "VLLM_PLUGINS"]
    assert unordered(spec) == unordered(injected["spec"])


def test_a_pod_of_the_class_guaranteed_stays_in_it(
    kube: KubeRest, namespaces: tuple[str, str]
) -> None:
    pod = pod_of(manifest("llm-d-decode"))
    pod["spec"]["initContainers"] = []  # its proxy asks for nothing
    made, _ = create(kube, namespaces[1], pod)
    assert made["status"]["qosClass"] == "Guaranteed"
    assert made["spec"]["initContainers"][-1]["name"] == SIDECAR
    assert made["spec"]["imagePullSecrets"] == [{"name": "registry"}]


def test_without_a_pool_there_is_no_snippet_and_without_injection_nothing_else() -> None:
    everything = ("injection", "injection-checks", "injection-snippet")
    kinds = Counter(each["kind"] for each in rendered(only=everything))
    assert kinds == {
        "MutatingAdmissionPolicy": 1,
        "MutatingAdmissionPolicyBinding": 1,
        "ValidatingAdmissionPolicy": 2,
        "ValidatingAdmissionPolicyBinding": 4,
    }
    assert rendered("injection.enabled=false", only=everything) == []


def test_an_older_api_server_gets_the_policies_that_it_has() -> None:
    older = ["--kube-version", "1.35.0"]
    beta = ["--api-versions", "admissionregistration.k8s.io/v1beta1/MutatingAdmissionPolicy"]
    assert "MutatingAdmissionPolicy" not in {each["kind"] for each in rendered(more=older)}
    made = [each for each in rendered(more=[*older, *beta]) if each["kind"].startswith("Mutating")]
    assert [each["apiVersion"] for each in made] == ["admissionregistration.k8s.io/v1beta1"] * 2
