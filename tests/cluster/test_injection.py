"""Manifests of stock vLLM, as people have them, become engines by the API server's policy alone."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from injection import (
    CHART,
    MANIFESTS,
    SIDECAR,
    another_release,
    create,
    installed,
    manifest,
    pod_of,
)  # fmt: skip
from lorafleet_operator.api.names import CONDITION_WARM
from lorafleet_sidecar.neighbour import Dialer
from lorafleet_sidecar.settings import SidecarSettings
from pod_processes import PodProcesses

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kube_rest import Json, KubeRest

GROUP = 65532
GI, MI = 1 << 30, 1 << 20


@dataclass(frozen=True)
class Expected:
    """What comes of one manifest; the defaults are what most have."""

    engine: str = "vllm"
    url: str = "http://127.0.0.1:8000"
    arena: int = 2 * GI
    python_path: str = "/lorafleet/plugin"
    volume: str = "lorafleet"
    path: str = "/lorafleet"
    restricted: bool = False
    changed: tuple[tuple[str, str], ...] = ()  # values of other variables that became others


EXPECTED = {
    "aibrix": Expected("vllm-openai"),
    "bare-pod": Expected("rocm", arena=512 * MI),
    "config-file": Expected(url="http://127.0.0.1:8100", restricted=True),
    "deployment-plain": Expected("mistral-7b"),
    "deployment-restricted": Expected(
        arena=16 * GI, restricted=True,
        changed=(("VLLM_PLUGINS", "lora_filesystem_resolver,lorafleet"),),
    ),
    "env-flags": Expected(url="http://127.0.0.1:8088", restricted=True),
    "host-network": Expected(),
    "kserve-llm": Expected("main", url="https://127.0.0.1:8000", restricted=True),
    "kserve-predictor": Expected("kserve-container", url="http://127.0.0.1:8080", restricted=True),
    "leaderworkerset": Expected("vllm-leader", url="http://127.0.0.1:8080"),
    "llm-d-decode": Expected(url="http://127.0.0.1:8200"),
    "named-container": Expected("decode", url="http://127.0.0.1:8200"),
    "names-taken": Expected(
        python_path="/workspace/src:/lorafleet-memory/plugin",
        volume="lorafleet-memory", path="/lorafleet-memory", restricted=True,
    ),
    "production-stack": Expected(),
    "production-stack-sidecars": Expected(),
    "pythonpath-configmap": Expected(python_path="$(LORAFLEET_PYTHONPATH):/lorafleet/plugin"),
    "pythonpath-literal": Expected(
        python_path="/opt/ours:/lorafleet/plugin", restricted=True,
        changed=(("VLLM_PLUGINS", "lorafleet"),),
    ),
    "repeated-variables": Expected(arena=512 * MI, restricted=True),
    "shell-script": Expected("server", url="http://127.0.0.1:8001", restricted=True),
    "statefulset": Expected("engine", url="http://127.0.0.1:9000", arena=8 * GI, restricted=True),
    "two-vllm-images": Expected("model"),
}  # fmt: skip


@pytest.fixture(scope="module")
def namespaces(kube: KubeRest) -> Iterator[tuple[str, str]]:
    with installed(
        kube,
        'injection.arenas:={"smollm2":"512Mi","qwen3-moe":"8Gi"}',
        "tls.mode=helm",
        "tls.sidecarSecret=lorafleet-sidecar",
    ) as names:
        yield names


def named(things: list[Json], name: str) -> Json:
    [found] = [each for each in things if each["name"] == name]
    return found


def test_every_manifest_is_expected_to_become_something() -> None:
    assert sorted(EXPECTED) == sorted(path.stem for path in MANIFESTS.glob("*.yaml"))
    assert len(EXPECTED) >= 20


@pytest.mark.parametrize("name", EXPECTED)
def test_a_stock_pod_gets_what_an_engine_needs_and_stays_what_it_was(
    kube: KubeRest, namespaces: tuple[str, str], name: str
) -> None:
    wanted = EXPECTED[name]
    namespace = namespaces[0] if wanted.restricted else namespaces[1]
    plain, _ = create(
        kube, namespace, pod_of(manifest(name), labels={"lorafleet.dev/inject": "false"})
    )
    assert SIDECAR not in str(plain)
    made, _ = create(kube, namespace, pod_of(manifest(name)))
    before, after = plain["spec"], made["spec"]

    # The sidecar is the last init container, all others are as they were.
    inits = before.get("initContainers", [])
    assert after["initContainers"][:-1] == inits
    _check_sidecar(made, wanted)
    _check_volumes(before, after, wanted)
    _check_engine(before, after, wanted)
    assert after["readinessGates"] == [{"conditionType": CONDITION_WARM}]
    groups = before["securityContext"].get("supplementalGroups", [])
    assert after["securityContext"] == {
        **before["securityContext"],
        "supplementalGroups": [*groups, GROUP],
    }
    touched = {"initContainers", "containers", "volumes", "readinessGates", "securityContext"}
    assert _without(before, touched) == _without(after, touched)


def settings_of(pod: Json) -> SidecarSettings:
    """What the sidecar reads when the kubelet starts it."""
    environ = PodProcesses(pod, {}, Path()).environ(SIDECAR)
    return SidecarSettings.from_environ(environ)


def _check_sidecar(made: Json, wanted: Expected) -> None:
    sidecar = made["spec"]["initContainers"][-1]
    assert (sidecar["name"], sidecar["restartPolicy"]) == (SIDECAR, "Always")
    settings = settings_of(made)
    assert settings.arena_bytes == wanted.arena
    assert settings.engine_url == wanted.url
    assert str(settings.volume) == wanted.path
    assert settings.pod_uid == made["metadata"]["uid"]
    assert settings.peer_name == f"{made['metadata']['namespace']}.engines.lorafleet"
    assert Dialer(settings.tls_dir, settings.peer_name).may_dial
    memory = sidecar["resources"]
    assert int(memory["limits"]["memory"]) == wanted.arena + wanted.arena // 256 + 768 * MI
    assert int(memory["requests"]["memory"]) == wanted.arena + 256 * MI
    assert sidecar["startupProbe"]["httpGet"]["path"] == "/healthz"
    context = sidecar["securityContext"]
    assert context["readOnlyRootFilesystem"]
    assert (context["runAsUser"], context["runAsGroup"]) == (65532, GROUP)
    mounts = {each["name"]: each["mountPath"] for each in sidecar["volumeMounts"]}
    assert mounts.pop("lorafleet-api-key", None) == (
        "/api-key" if settings.engine_api_key_file else None
    )
    assert mounts == {wanted.volume: wanted.path, "lorafleet-tls": "/tls"}


def _check_volumes(before: Json, after: Json, wanted: Expected) -> None:
    old = before.get("volumes", [])
    assert after["volumes"][: len(old)] == old
    added = {each["name"]: each for each in after["volumes"][len(old) :]}
    memory = added[wanted.volume]["emptyDir"]
    assert memory["medium"] == "Memory"
    assert int(memory["sizeLimit"]) == wanted.arena + 256 * MI
    assert added["lorafleet-tls"]["secret"]["secretName"] == "lorafleet-sidecar"
    assert added.keys() <= {wanted.volume, "lorafleet-tls", "lorafleet-api-key"}


def _check_engine(before: Json, after: Json, wanted: Expected) -> None:
    for old, new in zip(before["containers"], after["containers"], strict=True):
        if old["name"] != wanted.engine:
            assert new == old
            continue
        touched = {"env", "volumeMounts"}
        assert _without(new, touched) == _without(old, touched), "image, probes, command, all of it"
        mounts = old.get("volumeMounts", [])
        assert new["volumeMounts"] == [
            *mounts, {"name": wanted.volume, "mountPath": wanted.path},
        ]  # fmt: skip
        assert named(new["env"], "LORAFLEET_VOLUME") == {
            "name": "LORAFLEET_VOLUME", "value": wanted.path,
        }  # fmt: skip
        assert named(new["env"], "PYTHONPATH")["value"] == wanted.python_path
        changed = dict(wanted.changed)
        kept = copy.deepcopy(old.get("env", []))
        for each in kept:
            if each["name"] in changed:
                each["value"] = changed[each["name"]]
            elif each["name"] == "PYTHONPATH" and "value" in each:
                each["value"] = wanted.python_path
            elif each["name"] == "PYTHONPATH":
                each["name"] = "LORAFLEET_PYTHONPATH"
        assert new["env"][: len(kept)] == kept, "in their order: one may name an earlier one"


def _without(of: Json, keys: set[str]) -> dict[str, Any]:
    return {key: value for key, value in of.items() if key not in keys}


def test_the_chart_has_an_example_that_becomes_an_engine(
    kube: KubeRest, namespaces: tuple[str, str]
) -> None:
    example = yaml.safe_load((CHART / "examples" / "engines.yaml").read_text())
    made, warnings = create(kube, namespaces[1], pod_of(example))
    assert settings_of(made).arena_bytes == 512 * MI
    assert warnings == []


def test_a_pod_that_was_injected_before_is_left_alone(
    kube: KubeRest, namespaces: tuple[str, str]
) -> None:
    made, _ = create(kube, namespaces[1], pod_of(manifest("production-stack")))
    again = {key: copy.deepcopy(made[key]) for key in ("metadata", "spec")}
    again["metadata"] = {"name": "again", "labels": made["metadata"]["labels"]}
    remade, _ = create(kube, namespaces[1], again)
    assert remade["spec"] == made["spec"]


def test_two_releases_whose_policies_both_hold_put_one_sidecar_in(
    kube: KubeRest, namespaces: tuple[str, str], namespace: str
) -> None:
    """Whichever comes first has done it."""
    with another_release(kube, namespaces[1], namespace, "injection.arena=64Mi"):
        made, _ = create(kube, namespaces[1], pod_of(manifest("deployment-plain")))
        assert [each["name"] for each in made["spec"]["initContainers"]] == [SIDECAR]
        assert settings_of(made).arena_bytes in (2 * GI, 64 * MI)


def test_what_a_pod_sets_for_itself_as_a_whole_grows_by_the_sidecars_share(
    kube: KubeRest, namespaces: tuple[str, str]
) -> None:
    """Containers may not ask for more than their pod: without it the API server takes none."""
    pod = pod_of(manifest("deployment-plain"))
    (engine,) = pod["spec"]["containers"]
    engine["resources"] = {}
    pod["spec"]["resources"] = {
        "requests": {"cpu": "1500m", "memory": "1.5Gi"},
        "limits": {"memory": "3Gi"},
    }
    made, _ = create(kube, namespaces[1], pod)
    assert made["spec"]["initContainers"][-1]["name"] == SIDECAR
    whole = made["spec"]["resources"]
    assert int(whole["requests"]["memory"]) == 3 * GI // 2 + 2 * GI + 256 * MI
    assert int(whole["limits"]["memory"]) == 3 * GI + 2 * GI + 2 * GI // 256 + 768 * MI
    assert whole["requests"]["cpu"] == "1600m"
    assert "cpu" not in whole["limits"]


def test_an_injected_pod_can_be_changed_and_debugged_like_any_other(
    kube: KubeRest, namespaces: tuple[str, str]
) -> None:
    made, _ = create(kube, namespaces[1], pod_of(manifest("deployment-plain")))
    place = f"/api/v1/namespaces/{namespaces[1]}/pods/{made['metadata']['name']}"
    kube.merge(place, {"metadata": {"labels": {"traffic": "off"}}})
    [engine] = made["spec"]["containers"]
    kube.merge(place, {"spec": {"containers": [{**engine, "image": f"{engine['image']}-1"}]}})
    debugger = {"name": "debugger", "image": "busybox", "targetContainerName": engine["name"]}
    kube.merge(f"{place}/ephemeralcontainers", {"spec": {"ephemeralContainers": [debugger]}})
    after = kube.get(place)["spec"]
    assert [each["name"] for each in after["ephemeralContainers"]] == ["debugger"]
    touched = {"ephemeralContainers", "containers"}
    assert _without(after, touched) == _without(made["spec"], touched)
    assert after["containers"] == [{**engine, "image": f"{engine['image']}-1"}]


def test_a_key_of_vllms_api_from_a_secret_is_given_to_the_sidecar_as_a_file(
    kube: KubeRest, namespaces: tuple[str, str]
) -> None:
    made, _ = create(kube, namespaces[1], pod_of(manifest("production-stack")))
    sidecar = named(made["spec"]["initContainers"], SIDECAR)
    assert named(sidecar["env"], "LORAFLEET_ENGINE_API_KEY_FILE")["value"] == "/api-key/key"
    volume = named(made["spec"]["volumes"], "lorafleet-api-key")
    assert volume["secret"]["secretName"] == "vllm-secrets"
    assert volume["secret"]["items"] == [{"key": "vllmApiKey", "path": "key"}]


def test_host_ports_keep_two_such_pods_off_one_node(
    kube: KubeRest, namespaces: tuple[str, str]
) -> None:
    made, _ = create(kube, namespaces[1], pod_of(manifest("host-network")))
    ports = named(made["spec"]["initContainers"], SIDECAR)["ports"]
    assert [(each["containerPort"], each["hostPort"]) for each in ports] == [
        (7070, 7070),
        (9464, 9464),
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"labels": {"lorafleet.dev/inject": "false"}},
        {"annotations": {"lorafleet.dev/arena": "plenty"}},
        {"annotations": {"lorafleet.dev/engine-container": "nobody"}},
    ],
    ids=["not wanted", "an arena of no size", "an engine that is not there"],
)
def test_what_could_be_no_engine_starts_as_it_is(
    kube: KubeRest, namespaces: tuple[str, str], change: dict[str, Any]
) -> None:
    made, _ = create(kube, namespaces[1], pod_of(manifest("deployment-plain"), **change))
    assert SIDECAR not in str(made["spec"])


def test_pods_of_other_namespaces_and_without_the_label_are_none_of_its_business(
    kube: KubeRest, namespaces: tuple[str, str], namespace: str
) -> None:
    elsewhere, _ = create(kube, namespace, pod_of(manifest("deployment-plain")))
    assert SIDECAR not in str(elsewhere["spec"])
    pod = pod_of(manifest("deployment-plain"))
    pod["metadata"]["labels"] = {"app": "mistral-7b"}
    unlabelled, _ = create(kube, namespaces[1], pod)
    assert SIDECAR not in str(unlabelled["spec"])
