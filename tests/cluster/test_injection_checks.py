"""What people are told whose vLLM would be no engine, or a poor one: refused, or warned of, in one line."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
from injection import POOL, create, create_at, installed, manifest, pod_of
from kube_rest import Refused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kube_rest import Json, KubeRest

WHO = "pool sql: container vllm "
GOOD = ("serve", "m", "--enable-lora", "--max-loras=2", "--max-lora-rank=16")


@pytest.fixture(scope="module")
def namespace(kube: KubeRest) -> Iterator[str]:
    with installed(kube) as (_, privileged):
        yield privileged


def deployment(
    *arguments: str,
    command: tuple[str, ...] = ("vllm",),
    image: str = "vllm/vllm-openai:v0.26.0",
    env: dict[str, Any] | None = None,
    notes: dict[str, str] | None = None,
    others: tuple[Json, ...] = (),
    pool: str = "sql",
    volumes: tuple[str, ...] = (),
) -> Json:
    """A Deployment of one container `vllm`, labelled for the pool, beside `others`."""
    variables = [
        {"name": name, **(value if isinstance(value, dict) else {"value": value})}
        for name, value in (env or {}).items()
    ]
    container = {"name": "vllm", "image": image, "args": list(arguments), "env": variables}
    if command:
        container["command"] = list(command)
    metadata = {"labels": {"app": "sql", POOL: pool}, "annotations": notes or {}}
    pod = {
        "containers": [container, *others],
        "volumes": [{"name": name, "emptyDir": {}} for name in volumes],
    }
    template = {"metadata": metadata, "spec": pod}
    spec = {"selector": {"matchLabels": {"app": "sql"}}, "template": template}
    return {"kind": "Deployment", "metadata": {"generateName": "sql-"}, "spec": spec}


def apply(kube: KubeRest, namespace: str, body: Json) -> tuple[Json, list[str]]:
    """Create the Deployment; return it and the warnings. Raises Refused."""
    return create_at(kube, f"/apis/apps/v1/namespaces/{namespace}/deployments", body)


REFUSED = {
    "no --enable-lora in a list": (
        deployment("serve", "m", "--max-loras=2"),
        WHO + "runs vLLM without --enable-lora, so it could take no adapter",
    ),
    "nor behind the image's own entry point": (
        deployment("--model=m", command=()),
        WHO + "runs vLLM without --enable-lora, so it could take no adapter",
    ),
    "nor in a shell's line": (
        deployment("exec vllm serve m --port 8000", command=("sh", "-c"), image="ours:1"),
        WHO + "runs vLLM without --enable-lora, so it could take no adapter",
    ),
    "several API servers": (
        deployment(*GOOD, "--api-server-count", "4"),
        WHO + "runs several API servers, and adapters would be known to one of them: "
        "set --api-server-count=1",
    ),
    "several, for data-parallel ranks": (
        deployment(*GOOD, "--data-parallel-size=2"),
        WHO + "runs several API servers, and adapters would be known to one of them: "
        "set --api-server-count=1",
    ),
    "an arena that is none": (
        deployment(*GOOD, notes={"lorafleet.dev/arena": "2 GB"}),
        WHO + "gets an arena of 2 GB; the annotation lorafleet.dev/arena takes a whole number of "
        "bytes such as 512Mi or 2Gi, 2Mi to 1Pi",
    ),
    "an arena that holds nothing": (
        deployment(*GOOD, notes={"lorafleet.dev/arena": "64Ki"}),
        WHO + "gets an arena of 64Ki; the annotation lorafleet.dev/arena takes a whole number of "
        "bytes such as 512Mi or 2Gi, 2Mi to 1Pi",
    ),
    "nobody knows which container": (
        deployment(
            "run", command=("/start.sh",), image="a:1", others=({"name": "vllm-b", "image": "b:1"},)
        ),
        "pool sql: which container runs vLLM is not clear: the annotation "
        "lorafleet.dev/engine-container has to name one of vllm, vllm-b",
    ),
    "an arena beyond all numbers": (
        deployment(*GOOD, notes={"lorafleet.dev/arena": "9223372036854775807"}),
        WHO + "gets an arena of 9223372036854775807; the annotation lorafleet.dev/arena takes a whole "
        "number of bytes such as 512Mi or 2Gi, 2Mi to 1Pi",
    ),
    "a port by its name": (
        deployment(*GOOD, notes={"lorafleet.dev/engine-port": "http"}),
        WHO + "is to be asked at port http; the annotation lorafleet.dev/engine-port takes the number "
        "of a port",
    ),
    "no pool": (
        deployment(*GOOD, pool=""),
        "the label lorafleet.dev/engine-pool is empty: it names the pool that the engines belong to",
    ),
    "a container of our name": (
        deployment(*GOOD, others=({"name": "lorafleet-sidecar", "image": "a:1"},)),
        "pool sql: the names lorafleet-sidecar of a container or volume are those of what is put in: "
        "give yours others",
    ),
    "volumes of our names": (
        deployment(*GOOD, volumes=("lorafleet", "lorafleet-memory", "lorafleet-tls")),
        "pool sql: the names lorafleet-memory, lorafleet-tls of a container or volume are those of "
        "what is put in: give yours others",
    ),
    "a container that is not there": (
        deployment(*GOOD, notes={"lorafleet.dev/engine-container": "main"}),
        "pool sql: the annotation lorafleet.dev/engine-container names main, which is none of the "
        "containers vllm",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_workload_that_could_be_no_engine_is_refused_in_one_line(
    kube: KubeRest, namespace: str, case: str
) -> None:
    body, line = REFUSED[case]
    with pytest.raises(Refused) as refusal:
        apply(kube, namespace, body)
    assert refusal.value.status == 422
    assert str(refusal.value).endswith(f"denied request: {line}")


@pytest.mark.parametrize("case", REFUSED)
def test_a_pod_of_the_same_kind_starts_as_it_is_and_whoever_makes_it_is_told(
    kube: KubeRest, namespace: str, case: str
) -> None:
    body, line = REFUSED[case]
    made, warnings = create(kube, namespace, pod_of(body | {"metadata": {"name": "sql"}}))
    assert line in warnings
    if not case.startswith("several"):  # an engine all the same, that says so in the pool's status
        assert "initContainers" not in made["spec"]


WARNED = {
    "nothing": (deployment(*GOOD), []),
    "several ranks behind one API server": (
        deployment(*GOOD, "--data-parallel-size", "2", "--api-server-count", "1"), [],
    ),
    "one slot": (
        deployment("serve", "m", "--enable-lora", "--max_lora_rank", "16"),
        [WHO + "sets no --max-loras, so it has one slot: requests of two adapters take turns"],
    ),
    "vLLM's rank": (
        deployment("serve", "m", "--enable-lora", "--max-loras=3"),
        [WHO + "sets no --max-lora-rank, so adapters of a rank above 16 are refused"],
    ),
    "flags that nobody sees here": (
        deployment("--config", "/etc/vllm.yaml", command=()),
        [WHO + "does not show --enable-lora (its command or a file decides); without it the engine "
         "takes no adapter"],
    ),
    "a door for every client": (
        deployment(*GOOD, env={"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}),
        [WHO + "sets VLLM_ALLOW_RUNTIME_LORA_UPDATING, by which every client may load and unload "
         "adapters; the plugin needs it not"],
    ),
    "a key in the arguments": (
        deployment(*GOOD, "--api-key=$(KEY)"),
        [WHO + "has an API key that the sidecar does not know: give it by the variable VLLM_API_KEY "
         "from a Secret"],
    ),
    "a key that stands there": (
        deployment(*GOOD, env={"VLLM_API_KEY": "secret"}),
        [WHO + "has an API key that the sidecar does not know: give it by the variable VLLM_API_KEY "
         "from a Secret"],
    ),
    "a key from a Secret": (
        deployment(*GOOD, env={"VLLM_API_KEY": {"valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}}),
        [],
    ),
    "a Python path that hides the plugin": (
        deployment("PYTHONPATH=/opt vllm " + " ".join(GOOD), command=("sh", "-c")),
        [WHO + "sets PYTHONPATH in its command, which hides the plugin; write PYTHONPATH=...:$PYTHONPATH"],
    ),
    "a Python path that does not": (
        deployment("PYTHONPATH=/opt:$PYTHONPATH vllm " + " ".join(GOOD), command=("sh", "-c")),
        [],
    ),
    "plugins from elsewhere": (
        deployment(*GOOD, env={"VLLM_PLUGINS": {"valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}}),
        [WHO + "takes VLLM_PLUGINS from elsewhere; lorafleet has to be in it"],
    ),
    "a port from a variable": (
        deployment(*GOOD, "--port", "$(PORT)"),
        [WHO + "takes its port from a variable; the annotation lorafleet.dev/engine-port has to name it"],
    ),
    "a port that is told": (
        deployment(*GOOD, "--port", "$(PORT)", notes={"lorafleet.dev/engine-port": "8080"}),
        [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WARNED)
def test_what_is_allowed_and_rarely_meant_is_said_where_it_is_applied(
    kube: KubeRest, namespace: str, case: str
) -> None:
    body, lines = WARNED[case]
    _, warnings = apply(kube, namespace, body)
    assert warnings == lines


def test_a_workload_without_the_label_is_not_looked_at(kube: KubeRest, namespace: str) -> None:
    body = copy.deepcopy(REFUSED["no --enable-lora in a list"][0])
    del body["spec"]["template"]["metadata"]["labels"][POOL]
    assert apply(kube, namespace, body)[1] == []


def test_what_ran_before_the_checks_came_is_refused_only_when_its_spec_changes(
    kube: KubeRest, namespace: str
) -> None:
    body = copy.deepcopy(REFUSED["no --enable-lora in a list"][0])
    body["spec"]["template"]["metadata"]["labels"]["lorafleet.dev/inject"] = "false"
    made, _ = apply(kube, namespace, body)
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/{made['metadata']['name']}"
    kube.merge(path, {"metadata": {"annotations": {"deployment.kubernetes.io/revision": "2"}}})
    wanted = {"metadata": {"labels": {"lorafleet.dev/inject": None}}}
    with pytest.raises(Refused):
        kube.merge(path, {"spec": {"template": wanted}})


def test_a_leader_that_serves_is_checked_like_any_other(kube: KubeRest, namespace: str) -> None:
    kube.install_crd(_LEADERWORKERSETS)
    path = f"/apis/leaderworkerset.x-k8s.io/v1/namespaces/{namespace}/leaderworkersets"
    good = manifest("leaderworkerset")
    assert create_at(kube, path, good)[1] == []
    labelled = copy.deepcopy(good)
    labelled["metadata"]["name"] = "labelled"
    worker = labelled["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    worker["metadata"] = {"labels": {POOL: "llama405"}}
    assert create_at(kube, path, labelled)[1] == [
        "pool llama405: container vllm-leader has workers that are labelled too, and only the leader "
        "serves; label leaderTemplate alone"
    ]
    bad = copy.deepcopy(good)
    bad["metadata"]["name"] = "bad"
    [leader] = bad["spec"]["leaderWorkerTemplate"]["leaderTemplate"]["spec"]["containers"]
    leader["command"][-1] = leader["command"][-1].replace("--enable-lora", "")
    with pytest.raises(Refused, match="container vllm-leader runs vLLM without --enable-lora"):
        create_at(kube, path, bad)


_ANY = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_LEADERWORKERSETS: Json = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "leaderworkersets.leaderworkerset.x-k8s.io"},
    "spec": {
        "group": "leaderworkerset.x-k8s.io",
        "scope": "Namespaced",
        "names": {
            "kind": "LeaderWorkerSet",
            "plural": "leaderworkersets",
            "singular": "leaderworkerset",
        },
        "versions": [
            {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": _ANY}}
        ],
    },
}
