"""Every failure there is, provoked by real input and read in the output of `kubectl describe`.

One operator and one namespace; the failures stand side by side, so that no test waits for another's.
"""

from __future__ import annotations

import re
import shutil
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from described import Described, describe
from kubernetes import client
from localcluster import find_binary
from lorafleet import errors
from lorafleet_operator.api.conditions import Reason
from operator_chain import BASE, CASES, HERE, Chain
from source_builders import adapter, artifact
from waiting import eventually
from web_server import WebServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kube_rest import KubeRest
    from localcluster import LocalCluster

pytestmark = [pytest.mark.cluster, pytest.mark.chain]
PROFILE = (HERE / "profiles" / "qwen3-dense.json").read_text()
MIB = 1 << 20

PROVOKED = {
    # The adapter itself
    Reason.INVALID_ADAPTER: "adapter_model.safetensors is incomplete (have 10256 bytes, header",
    Reason.BASE_MODEL_MISMATCH: "was trained for other-org/some-other-7b, engine serves",
    Reason.RANK_TOO_HIGH: "LoRA rank 16 is greater than max_lora_rank 8",
    Reason.DIGEST_MISMATCH: "the manifest promises sha256:",
    Reason.TOO_LARGE: "needs 6.0 MiB",
    # The transfer
    Reason.STAGING_FULL: "staging volume full: 4 MiB of 4 MiB used, need 2 MiB",
    Reason.STAGING_BUSY: "another stream is staging ",
    Reason.TRANSFER_INTERRUPTED: "nothing arrived for 0.5 s; send the manifest again to resume",
    # The engine
    Reason.ENGINE_UNREACHABLE: "engine mortal: sidecar at ",
    Reason.ENGINE_REJECTED: "no kernel for this",
    Reason.PLUGIN_INACTIVE: "pinned needs the plugin",
    Reason.NAME_TAKEN: f"served name {BASE} conflicts with a served base model",
    Reason.INTERNAL_ERROR: "failed unexpectedly: ",
    # The source
    Reason.SOURCE_NOT_FOUND: "adapter_config.json not found in pvc://",
    Reason.ACCESS_DENIED: "401 from http://127.0.0.1:",
    Reason.SOURCE_UNAVAILABLE: ": HTTP status 503",
    Reason.SOURCE_CHANGED: "adapter_model.safetensors in http://127.0.0.1:",
    Reason.PATH_NOT_ALLOWED: "is a link to",
    # Placement
    Reason.POOL_NOT_FOUND: "/absent does not exist",
    Reason.NO_MATCHING_ENGINES: "engine runs without --enable-lora",
    Reason.NO_CAPACITY: "needs 2.0 MiB",
    # Tenants
    Reason.NOT_GRANTED: "namespace elsewhere holds no AdapterGrant from namespace ",
    Reason.QUOTA_EXCEEDED: "tenant none has 0 of 0 adapters",
}
"""Reason -> what its line holds. The adapter of a reason has the reason's name."""
WAITS = {Reason.LOAD_RATE_LIMITED: "tenant slow has 1 loads a minute, all are taken for now"}
"""The same of what only waits for its turn: no Event tells of it."""
EVENTS = {Reason.PREEMPTED: "urgent of higher priority"}
"""The same of what stands in an Event: once it is unloaded, the condition says NoCapacity."""
RIVALS = {
    Reason.STAGING_BUSY: ["second"],
    Reason.LOAD_RATE_LIMITED: ["third", "fourth", "fifth", "sixth", "seventh", "eighth"],
}
"""Others that want the same at the same time: any may come first, and another one waits, of those with
one load a minute for as long as these tests may take."""
ROUTES = {
    Reason.ROUTE_REFUSED: "denied request: no such Service",
    Reason.ROUTE_NAME_TAKEN: "Service lora-routenametaken exists and is not the operator's",
    Reason.GATEWAY_API_MISSING: "the cluster has no HTTPRoute of gateway.networking.k8s.io/v1",
}
"""Reason of condition Routed -> what its line holds."""
POOLS = {
    "no-lora": ("EnginesReady", Reason.ENGINE_REFUSED, "engine runs without --enable-lora"),
    "mortal": ("EnginesReady", Reason.ENGINE_UNREACHABLE, "engine mortal: sidecar at "),
    "bare": ("EnginesReady", Reason.SIDECAR_MISSING, "engine bare: the pod has no sidecar: "),
    "empty": ("EnginesReady", Reason.NO_MATCHING_ENGINES, "the selector finds no pods"),
    "plain": ("PluginActive", Reason.PLUGIN_INACTIVE, "engine plain: "),
}
ELSEWHERE = {
    Reason.REVISION_NOT_STAGED: "test_operator_canary.py",
    Reason.ROLLED_BACK: "test_operator_canary.py",
    Reason.CANARY: "test_operator_canary.py",
}
"""Reason -> the module that reads it in the same output, for it needs a course of events."""
NO_FAILURES = {
    *(Reason.RESOLVED, Reason.RESOLVING, Reason.PLACED, Reason.STAGING, Reason.LOADING),
    *(Reason.LOADED, Reason.READY, Reason.WAITING, Reason.PAUSED, Reason.ROUTED),
    *(Reason.REWRITTEN, Reason.AS_FOUND, Reason.TOWER_DROPPED, Reason.APPLIED_WHOLE),
    *(Reason.ALL_ZERO, Reason.HAS_EFFECT),
    *(Reason.ENGINES_READY, Reason.ENGINES_STARTING, Reason.PLUGIN_ACTIVE),
    Reason.ERROR_RATE,  # of status.rolledBack alone; the condition says RolledBack
}
"""What is well, on its way or wanted."""


def test_every_reason_of_a_failure_is_read_here_or_in_the_module_that_is_named() -> None:
    pools = {reason for _, reason, _ in POOLS.values()}
    assert set(Reason) == {
        *(*PROVOKED, *WAITS, *EVENTS, *ROUTES, *pools, *ELSEWHERE, *NO_FAILURES),
    }
    for reason, module in ELSEWHERE.items():
        assert re.search(
            rf'\.(tells|says)\("\w+", "{reason}", ', (HERE / "chain" / module).read_text()
        )


def test_every_error_of_the_tree_is_provoked_here() -> None:
    assert {Reason(cls.reason) for cls in errors.leaves()} <= PROVOKED.keys()


def test_each_error_has_a_reason_of_its_own() -> None:
    """But for those that only have others below them, which tell one of these."""
    lowest = [cls.reason for cls in errors.leaves() if len(errors.leaves(cls)) == 1]
    assert len(set(lowest)) == len(lowest)
    above = {cls.reason for cls in errors.leaves() if len(errors.leaves(cls)) > 1}
    assert above - set(lowest) == {"InternalError"}


@pytest.fixture(scope="module")
def scene(
    cluster: LocalCluster, kube: KubeRest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Chain]:
    """An operator in the middle of every failure."""
    namespace = f"test-{uuid.uuid4().hex[:8]}"
    kube.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    chain = Chain(cluster.kubeconfig, tmp_path_factory.mktemp("describe"), namespace)
    held = threading.Event()
    with WebServer().running() as web:
        try:
            start(chain)
            provoke(chain, web, held)
            yield chain
        finally:
            held.set()
            policies = client.AdmissionregistrationV1Api(chain.core.api_client)
            policies.delete_collection_validating_admission_policy_binding(
                field_selector=f"metadata.name={namespace}"
            )
            policies.delete_collection_validating_admission_policy(
                field_selector=f"metadata.name={namespace}"
            )
            chain.stop()
    kube.delete(f"/api/v1/namespaces/{namespace}")


def start(chain: Chain) -> None:
    """Start the engines, each with a pool of its name, and the operator."""

    def engine(index: int, name: str, *options: str, arena: int = 64 * MIB, **sidecar: str) -> None:
        settings = {"LORAFLEET_ARENA_BYTES": str(arena), **sidecar}
        chain.start_engine(name, index, *options, app=name, **settings)

    with ThreadPoolExecutor() as several:
        started = [
            several.submit(engine, 0, "engine-0", "--profile", PROFILE),
            several.submit(engine, 1, "small", arena=4 * MIB),
            several.submit(engine, 2, "refuser", "--refuse", "no kernel for this"),
            several.submit(engine, 3, "impatient", LORAFLEET_STALL_SECONDS="0.5"),
            several.submit(engine, 4, "mortal"),
            several.submit(engine, 5, "plain", "--plain"),
            several.submit(engine, 6, "no-lora", "--no-lora"),
        ]
        for each in started:
            each.result()
    for name in (*chain.engines, "bare", "empty"):
        chain.pool(name, name)
    bare_pod(chain)
    chain.pool("one-place", "engine-0", maxAdaptersPerEngine=1)
    for name, quota in (("none", {"adapters": 0}), ("slow", {"loadsPerMinute": 1})):
        tenant = {"name": name, "namespaceSelector": {"names": [chain.namespace]}, "quota": quota}
        chain.pool(name, "engine-0", tenants=[tenant])
    chain.start_operator(LORAFLEET_TRANSFERS="16")


def bare_pod(chain: Chain) -> None:
    """Make a pod that was labelled for the pool after it was made."""
    spec = {"containers": [{"name": "vllm", "image": "local.invalid/vllm"}]}
    pod = {"metadata": {"name": "bare"}, "spec": spec}
    chain.core.create_namespaced_pod(chain.namespace, pod)
    status = {"phase": "Running", "podIP": "127.0.0.1"}
    chain.core.patch_namespaced_pod_status("bare", chain.namespace, {"status": status})
    labels = {"metadata": {"labels": {"app": "bare"}}}
    chain.core.patch_namespaced_pod("bare", chain.namespace, labels)


def provoke(chain: Chain, web: WebServer, held: threading.Event) -> None:
    """Bring about every reason, by an adapter of its name."""

    def adapter_of(reason: Reason, pool: str = "engine-0", case: str = "", **spec: Any) -> None:
        chain.adapter(name_of(reason), case or "d01-plain-bf16", poolRef={"name": pool}, **spec)

    early = (
        ("first", "d01-plain-bf16", "small"),
        (name_of(Reason.STAGING_FULL), "d02-all-fp32", "small"),
        (name_of(Reason.ENGINE_UNREACHABLE), "d01-plain-bf16", "mortal"),
        (name_of(Reason.PREEMPTED), "d01-plain-bf16", "one-place"),
    )
    for name, case, pool in early:
        chain.adapter(name, case, poolRef={"name": pool})

    adapter_of(Reason.INVALID_ADAPTER, case="d46-truncated-download")
    adapter_of(Reason.BASE_MODEL_MISMATCH, case="d59-other-base-same-shapes")
    adapter_of(Reason.RANK_TOO_HIGH, case="d10-rank-over-max")
    adapter_of(Reason.SOURCE_NOT_FOUND, case="d51-config-missing")
    adapter_of(Reason.NAME_TAKEN, servedName=BASE)
    adapter_of(Reason.POOL_NOT_FOUND, "absent")
    adapter_of(Reason.NO_MATCHING_ENGINES, "no-lora")
    adapter_of(Reason.ENGINE_REJECTED, "refuser")
    adapter_of(Reason.PLUGIN_INACTIVE, "plain", pinned=True)
    away = {"name": "engine-0", "namespace": "elsewhere"}
    chain.adapter(name_of(Reason.NOT_GRANTED), poolRef=away)
    adapter_of(Reason.QUOTA_EXCEEDED, "none")
    for name in (*RIVALS[Reason.LOAD_RATE_LIMITED], name_of(Reason.LOAD_RATE_LIMITED)):
        chain.adapter(name, poolRef={"name": "slow"})

    taken = name_of(Reason.ROUTE_NAME_TAKEN)
    theirs = {"metadata": {"name": f"lora-{taken}"}, "spec": {"ports": [{"port": 80}]}}
    chain.core.create_namespaced_service(chain.namespace, theirs)
    adapter_of(Reason.ROUTE_NAME_TAKEN, routing={"service": True})
    front = {"gateway": {"name": "front"}, "hostname": "sql.example"}
    adapter_of(Reason.GATEWAY_API_MISSING, routing={"httpRoute": front})

    put_file_for_folder(chain.engines["plain"].volume / "staging")
    adapter_of(Reason.INTERNAL_ERROR, "plain")
    source = {"claimName": "claim", "path": "linked"}
    (chain.root / chain.namespace / "claim" / "linked").symlink_to(CASES / "d01-plain-bf16")
    adapter_of(Reason.PATH_NOT_ALLOWED, source={"persistentVolumeClaim": source})

    def http(reason: Reason, pool: str, before: Callable[[int], int | None] | None = None) -> None:
        """Serve an adapter of 8 MiB; `before` is called before each part of it is sent."""
        path = f"/{name_of(reason)}"
        files = adapter(elements=2 * MIB)
        web.files |= {f"{path}/{name}": content for name, content in files.items()}
        if before is not None:
            web.before[f"{path}/adapter_model.safetensors"] = before
        adapter_of(reason, pool, source={"http": {"url": web.url + path}})

    http(Reason.TOO_LARGE, "small")
    http(Reason.ACCESS_DENIED, "engine-0")
    web.tokens[f"/{name_of(Reason.ACCESS_DENIED)}"] = "an-unknown-token"
    http(Reason.SOURCE_UNAVAILABLE, "engine-0", lambda _: 503)
    http(Reason.SOURCE_CHANGED, "refuser", lambda start: written_again(web) if start else None)
    http(Reason.TRANSFER_INTERRUPTED, "impatient", lambda start: time.sleep(1.5 if start else 0))
    # Two adapters of one source: the first one's transfer is held up in the middle.
    http(Reason.STAGING_BUSY, "refuser", lambda start: hold(held) if start else None)
    shared = {"http": {"url": f"{web.url}/{name_of(Reason.STAGING_BUSY)}"}}
    chain.adapter("second", poolRef={"name": "refuser"}, source=shared)

    files = {path.name: path.read_bytes() for path in (CASES / "d01-plain-bf16").iterdir()}
    served = artifact(files, "sql", "v1")
    blob = next(path for path, content in served.items() if content[8:9] == b"{")
    web.files |= {**served, blob: served[blob][:-1] + b"?"}
    reference = f"{web.url.removeprefix('http://')}/sql:v1"
    adapter_of(Reason.DIGEST_MISMATCH, source={"oci": {"reference": reference, "plainHttp": True}})

    for name, _, _ in early:
        eventually(lambda name=name: chain.condition(name, "Ready")[0] == "True", what=name)
    chain.adapter("urgent", poolRef={"name": "one-place"}, priority=1)
    chain.put_source(name_of(Reason.STAGING_FULL), "d09-rank-6")
    adapter_of(Reason.NO_CAPACITY, "small", case="d11-rslora")
    chain.sidecars["mortal"].process.kill()
    with_policy(chain, name_of(Reason.ROUTE_REFUSED))
    adapter_of(Reason.ROUTE_REFUSED, routing={"service": True})


def with_policy(chain: Chain, name: str) -> None:
    """Let the API server refuse the Service of that adapter. The policy ends with the scene."""
    policies = client.AdmissionregistrationV1Api(chain.core.api_client)
    services = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["services"],
    }
    here = {"matchLabels": {"kubernetes.io/metadata.name": chain.namespace}}
    rule = {"expression": f"object.metadata.name != 'lora-{name}'", "message": "no such Service"}
    policy = {"matchConstraints": {"resourceRules": [services]}, "validations": [rule]}
    binding = {
        "policyName": chain.namespace,
        "validationActions": ["Deny"],
        "matchResources": {"namespaceSelector": here},
    }
    metadata = {"name": chain.namespace}
    policies.create_validating_admission_policy({"metadata": metadata, "spec": policy})
    policies.create_validating_admission_policy_binding({"metadata": metadata, "spec": binding})

    def refused() -> bool:
        service = {"metadata": {"name": f"lora-{name}"}, "spec": {"ports": [{"port": 80}]}}
        try:
            chain.core.create_namespaced_service(chain.namespace, service, dry_run="All")
        except client.ApiException as error:
            return error.status == 422
        return False

    eventually(refused, what="the policy counts")


def name_of(reason: Reason) -> str:
    return reason.lower()


def put_file_for_folder(folder: Path) -> None:
    """Break a sidecar's volume."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.touch()


def hold(until: threading.Event) -> None:
    """Wait, but less than a client waits for a silent server."""
    until.wait(25)


def written_again(web: WebServer) -> None:
    """Give the source another version, as somebody would who uploads it meanwhile."""
    path = f"/{name_of(Reason.SOURCE_CHANGED)}/adapter_model.safetensors"
    web.etags[path] = f'"{time.monotonic_ns()}"'


def described(scene: Chain, kind: str, name: str) -> Described:
    kubectl = find_binary("kubectl")
    return describe(kubectl, scene.kubeconfig, scene.namespace, kind, name)


@pytest.mark.parametrize("reason", [*WAITS, *PROVOKED])
def test_an_adapter_tells_the_reason_in_its_conditions_and_events(
    scene: Chain, reason: Reason
) -> None:
    names = [*RIVALS.get(reason, ()), name_of(reason)]
    text = {**PROVOKED, **WAITS}[reason]

    def told() -> bool:
        found = (described(scene, "loraadapter", name) for name in names)
        if reason in WAITS:
            return any(each.says("Ready", reason, text) for each in found)
        return any(each.tells("Ready", reason, text) for each in found)

    try:
        eventually(told)
    except AssertionError:
        seen = "\n".join(described(scene, "loraadapter", name).text for name in names)
        pytest.fail(f"{reason}: {text!r} is not in\n{seen}")


@pytest.mark.parametrize("reason", EVENTS)
def test_an_adapter_tells_once_what_became_of_it(scene: Chain, reason: Reason) -> None:
    def told() -> bool:
        events = described(scene, "loraadapter", name_of(reason)).events
        return any(why == reason and EVENTS[reason] in text for why, text in events)

    eventually(told, what=f"an Event of {reason}")


@pytest.mark.parametrize("reason", ROUTES)
def test_an_adapter_tells_why_requests_do_not_find_it(scene: Chain, reason: Reason) -> None:
    def told() -> bool:
        found = described(scene, "loraadapter", name_of(reason))
        return found.tells("Routed", reason, ROUTES[reason])

    try:
        eventually(told)
    except AssertionError:
        seen = described(scene, "loraadapter", name_of(reason)).text
        pytest.fail(f"{reason}: {ROUTES[reason]!r} is not in\n{seen}")


@pytest.mark.parametrize("pool", POOLS)
def test_a_pool_tells_the_reason_in_its_conditions_and_events(scene: Chain, pool: str) -> None:
    condition, reason, text = POOLS[pool]
    try:
        eventually(lambda: described(scene, "enginepool", pool).tells(condition, reason, text))
    except AssertionError:
        pytest.fail(f"{text!r} is not in\n{described(scene, 'enginepool', pool).text}")
