"""Every CEL rule: a manifest that passes, and one that the API server refuses with its text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from kube_rest import KubeRest, Refused
from lorafleet_operator.api import names, rules
from lorafleet_operator.api.rules import Rule
from resource_builders import adapter, grant, path, pool

Json = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """Two manifests that differ in what `rule` is about."""

    rule: Rule
    passes: Json
    refused: Json

    def __str__(self) -> str:
        name = next(name for name, value in vars(rules).items() if value is self.rule)
        return f"{name}-{self.passes['kind']}"


def http(url: str) -> Json:
    return {"http": {"url": url}}


def s3(**fields: Any) -> Json:
    return {"s3": {"bucket": "adapters", **fields}}


def volume(path_: str, **more: Any) -> Json:
    return {"persistentVolumeClaim": {"claimName": "models", "path": path_}, **more}


def hub(**fields: Any) -> Json:
    return {"huggingFace": {"repo": "org/sql", **fields}}


def oci(reference: str) -> Json:
    return {"oci": {"reference": reference}}


def rollout(**fields: Any) -> Json:
    return adapter(rollout=fields)


def canary(**fields: Any) -> Json:
    return rollout(canary=fields)


def tenants(**fields: Any) -> Json:
    tenant = {"name": "a", "namespaceSelector": {"names": ["a"]}, **fields}
    return pool(tenants=[{k: v for k, v in tenant.items() if v is not None}])


def share(amount: str | int) -> Json:
    return tenants(guarantee={"arenaShare": amount})


GCS: Json = {"gcs": {"bucket": "models", "prefix": "sql", "endpoint": "https://gcs.example"}}
AZURE: Json = {
    "azureBlob": {
        "account": "models",
        "container": "adapters",
        "prefix": "sql",
        "endpoint": "https://blobs.example",
    }
}
GATEWAY = {"gateway": {"name": "front"}}


TENANT = tenants()["spec"]["tenants"]
DIGEST = f"sha256:{'0a' * 32}"


CASES = [
    Case(rules.NAME_FITS, adapter("a" * 189), adapter("a" * 190)),
    Case(rules.NAME_FITS, adapter("a" * 250, servedName="short"), adapter("a" * 250)),
    Case(rules.SERVED_NAME_LENGTH, adapter(servedName="x" * 253), adapter(servedName="x" * 254)),
    Case(rules.SERVED_NAME_LENGTH, adapter(servedName="x"), adapter(servedName="")),
    Case(rules.SERVED_NAME_PRINTABLE, adapter(servedName="a b"), adapter(servedName="a\tb")),
    Case(rules.SERVED_NAME_PRINTABLE, adapter(servedName="ünïcode"), adapter(servedName=" a")),
    Case(rules.SERVED_NAME_PATH, adapter(servedName="a/b..c"), adapter(servedName="a/../b")),
    Case(rules.SERVED_NAME_PATH, adapter(servedName="a/"), adapter(servedName="/a")),
    Case(
        rules.SERVED_NAME_PINS_NOTHING,
        adapter(servedName="org/a@v2"),
        adapter(servedName="org/a@3f2a9c001122"),
    ),
    Case(rules.ONE_SOURCE, adapter(source=s3()), adapter(source={})),
    Case(
        rules.ONE_SOURCE,
        adapter(source=volume("a")),
        adapter(source={**s3(), **http("https://x")}),
    ),
    Case(rules.ONE_SOURCE, adapter(source=GCS), adapter(source={**GCS, **AZURE})),
    Case(rules.ONE_SOURCE, adapter(source=AZURE), adapter(source={**AZURE, **hub()})),
    Case(rules.ONE_SOURCE, adapter(source=hub()), adapter(source={**hub(), **oci("a/b:c")})),
    Case(rules.ONE_SOURCE, adapter(source=oci("a/b:c")), adapter(source={**oci("a/b:c"), **s3()})),
    Case(
        rules.ADAPTER_NAME,
        adapter(source={**s3(), "adapterName": "default"}),
        adapter(source={**s3(), "adapterName": "a.b"}),
    ),
    Case(
        rules.OCI_REFERENCE,
        adapter(source=oci("127.0.0.1:5000/team-a/sql_v1/x:v1.0")),
        adapter(source=oci("registry.example/team/sql")),
    ),
    Case(
        rules.OCI_REFERENCE,
        adapter(source=oci(f"registry.example/sql@{DIGEST}")),
        adapter(source=oci("https://registry.example/sql:v1")),
    ),
    Case(
        rules.OCI_REFERENCE,
        adapter(source=oci(f"Registry.example/sql:v1@{DIGEST}")),
        adapter(source=oci("registry.example/Sql:v1")),
    ),
    Case(
        rules.NO_PARENT_SEGMENT,
        adapter(source=hub(revision="refs/pr/3")),
        adapter(source=hub(revision="a/../b")),
    ),
    Case(
        rules.NO_PARENT_SEGMENT,
        adapter(source=hub(path="v1..2")),
        adapter(source=hub(repo="org/a..b")),
    ),
    Case(
        rules.NEEDS_NO_SECRET,
        adapter(source={**s3(), "credentialsSecretRef": {"name": "keys"}}),
        adapter(source=volume("a", credentialsSecretRef={"name": "keys"})),
    ),
    Case(
        rules.RELATIVE_PATH,
        adapter(source=volume("team/sql..v2")),
        adapter(source=volume("../sql")),
    ),
    Case(rules.RELATIVE_PATH, adapter(source=volume("")), adapter(source=volume("/etc"))),
    Case(
        rules.RELATIVE_PATH,
        adapter(source=s3(prefix="team/sql/")),
        adapter(source=s3(prefix="team/../other")),
    ),
    Case(rules.PRINTABLE, adapter(baseModel="org/base"), adapter(baseModel="org/\x07base")),
    Case(rules.PRINTABLE, adapter(source=volume("a b")), adapter(source=volume("a\nb"))),
    Case(rules.PRINTABLE, pool(baseModel="org/base"), pool(baseModel="a\u202eb")),
    Case(
        rules.HTTP_URL,
        adapter(source=http("http://10.0.0.1:8080/sql/adapter_model.safetensors")),
        adapter(source=http("file:///etc/passwd")),
    ),
    Case(rules.HTTP_URL, adapter(source=http("https://[::1]/sql")), adapter(source=http("sql"))),
    Case(
        rules.HTTP_URL,
        adapter(source=s3(endpoint="https://s3.example")),
        adapter(source=s3(endpoint="https://")),
    ),
    Case(
        rules.NO_USER_IN_URL,
        adapter(source=http("https://x/a@b")),
        adapter(source=http("https://me:secret@x/a")),
    ),
    Case(
        rules.REPLICAS_NEED_A_CHOICE,
        adapter(placement={"policy": "Spread", "replicas": 2}),
        adapter(placement={"replicas": 2}),
    ),
    Case(
        rules.REPLICAS_NEED_A_CHOICE,
        adapter(placement={"policy": "OnDemand"}),
        adapter(placement={"policy": "OnDemand", "replicas": 2}),
    ),
    Case(
        rules.IDLE_NEEDS_ON_DEMAND,
        adapter(placement={"policy": "OnDemand", "idleSeconds": 60}),
        adapter(placement={"policy": "All", "idleSeconds": 60}),
    ),
    Case(
        rules.PINNED_IS_GPU,
        adapter(pinned=True, residency="gpu"),
        adapter(pinned=True, residency="host"),
    ),
    Case(
        rules.PINNED_IS_GPU,
        adapter(pinned=False, residency="onDemand"),
        adapter(pinned=True, residency="shared"),
    ),
    Case(rules.SHARE, rollout(maxUnavailable="25%"), rollout(maxUnavailable="0.5")),
    Case(rules.SHARE, rollout(maxSurge=3, maxUnavailable=0), rollout(maxSurge=-1)),
    Case(rules.SHARE_OF_AT_LEAST_ONE, canary(engines=1), canary(engines=0)),
    Case(rules.SHARE_OF_AT_LEAST_ONE, canary(engines="100%"), canary(engines="0%")),
    Case(rules.ERROR_RATE, canary(maxErrorRate="0.5%"), canary(maxErrorRate="101%")),
    Case(rules.ERROR_RATE, canary(maxErrorRate=0), canary(maxErrorRate=101)),
    Case(rules.ROLLOUT_CAN_MOVE, rollout(maxSurge=0, maxUnavailable=1), rollout(maxSurge="0%")),
    Case(
        rules.ROLLOUT_CAN_MOVE,
        rollout(maxSurge="1%", maxUnavailable="0%"),
        rollout(maxSurge=0, maxUnavailable="0%"),
    ),
    Case(rules.ATOMIC_ALONE, rollout(atomic=True), rollout(atomic=True, canary={})),
    Case(rules.ATOMIC_ALONE, rollout(canary={}), rollout(atomic=True, maxSurge="50%")),
    Case(rules.ATOMIC_ALONE, rollout(maxSurge=3), rollout(atomic=True, maxSurge=3)),
    Case(
        rules.ATOMIC_ALONE,
        rollout(atomic=True, maxSurge="100%", maxUnavailable="0%"),
        rollout(atomic=True, maxUnavailable=1),
    ),
    Case(
        rules.ROUTE_CHOOSES,
        adapter(routing={"httpRoute": {**GATEWAY, "modelHeader": "X-Gateway-Model-Name"}}),
        adapter(routing={"httpRoute": GATEWAY}),
    ),
    Case(
        rules.ROUTE_CHOOSES,
        adapter(routing={"httpRoute": {**GATEWAY, "hostname": "sql.example"}}),
        adapter(routing={"httpRoute": {**GATEWAY}, "service": True}),
    ),
    Case(rules.RECYCLE_NEEDS_A_BOUND, pool(recycle={"maxLoads": 500}), pool(recycle={})),
    Case(
        rules.MAX_WAIT_NEEDS_SAFE_POINT,
        pool(recycle={"maxLoads": 500, "when": "SafePoint", "maxWaitSeconds": 60}),
        pool(recycle={"maxLoads": 500, "maxWaitSeconds": 60}),
    ),
    Case(rules.SELECTOR_NOT_EMPTY, pool(), pool(selector={"matchLabels": {}})),
    Case(rules.POSITIVE_QUANTITY, pool(hostMemoryBudget="8Gi"), pool(hostMemoryBudget="8GiB")),
    Case(rules.POSITIVE_QUANTITY, pool(hostMemoryBudget=1 << 33), pool(hostMemoryBudget=0)),
    Case(
        rules.ONE_NAMESPACE_SELECTOR,
        tenants(namespaceSelector={"names": ["a", "b"]}),
        tenants(namespaceSelector={}),
    ),
    Case(
        rules.ONE_NAMESPACE_SELECTOR,
        tenants(namespaceSelector={"matchLabels": {"team": "a"}}),
        tenants(namespaceSelector={"names": ["a"], "matchLabels": {"team": "a"}}),
    ),
    Case(rules.ARENA_SHARE, share("25%"), share("101%")),
    Case(rules.ARENA_SHARE, share("8Gi"), share("0%")),
    Case(rules.ARENA_SHARE, share(1 << 30), share(0)),
    Case(rules.TENANT_SELECTOR, tenants(), tenants(namespaceSelector=None)),
    Case(
        rules.TENANT_SELECTOR,
        tenants(name="*", namespaceSelector=None),
        tenants(name="*"),
    ),
    Case(
        rules.NO_GUARANTEE_FOR_ALL,
        tenants(guarantee={"slots": 1}),
        tenants(name="*", namespaceSelector=None, guarantee={"slots": 1}),
    ),
]
TRANSITIONS = {rules.BASE_MODEL_IMMUTABLE}


def test_every_rule_is_tried() -> None:
    written = {value for value in vars(rules).values() if isinstance(value, Rule)}
    assert written == {case.rule for case in CASES} | TRANSITIONS


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_rule_lets_the_right_manifest_pass(kube: KubeRest, namespace: str, case: Case) -> None:
    stored = kube.create(path(case.passes["kind"], namespace), case.passes)
    assert stored["metadata"]["generation"] == 1


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_rule_refuses_the_wrong_manifest_with_its_own_text_alone(
    kube: KubeRest, namespace: str, case: Case
) -> None:
    with pytest.raises(Refused) as refusal:
        kube.create(path(case.refused["kind"], namespace), case.refused)
    assert refusal.value.status == 422
    assert refusal.value.causes
    for cause in refusal.value.causes:
        assert case.rule.message in cause


@pytest.mark.parametrize("manifest", [adapter(), pool()], ids=lambda m: str(m["kind"]))
def test_the_base_model_cannot_be_changed_but_other_fields_can(
    kube: KubeRest, namespace: str, manifest: Json
) -> None:
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    kube.create(path(kind, namespace), manifest)
    with pytest.raises(Refused, match=r"baseModel cannot be changed; delete this object"):
        kube.merge(path(kind, namespace, name), {"spec": {"baseModel": "other/base"}})
    other = {"drainTimeoutSeconds": 5} if kind == "LoRAAdapter" else {"sidecarPort": 7071}
    assert kube.merge(path(kind, namespace, name), {"spec": other})["metadata"]["generation"] == 2


@pytest.mark.parametrize(
    ("manifest", "text"),
    [
        (adapter(baseModel=None), "spec.baseModel: Required value"),
        (adapter(source=None), "spec.source: Required value"),
        (adapter(poolRef={"name": "Not_A_Name"}), "spec.poolRef.name"),
        (adapter(loader="magic"), 'supported values: "direct", "device"'),
        (adapter(placement={"policy": "Some"}), 'supported values: "All", "Spread", "BinPack"'),
        (adapter(placement={"policy": "Spread", "replicas": 0}), "greater than or equal to 1"),
        (adapter(drainTimeoutSeconds=-1), "spec.drainTimeoutSeconds"),
        (adapter(revisionHistoryLimit=21), "spec.revisionHistoryLimit"),
        (adapter(revision="sha256:0"), "spec.revision"),
        (rollout(canary={"trafficPercent": 0}), "spec.rollout.canary.trafficPercent"),
        (rollout(canary={"probe": {"maxTokens": 0}}), "spec.rollout.canary.probe.maxTokens"),
        (adapter(dropUnmatched="all"), 'supported values: "tower"'),
        (adapter(source={"gcs": {"bucket": "A"}}), "spec.source.gcs.bucket"),
        (adapter(source={"azureBlob": {"account": "models"}}), "spec.source.azureBlob.container"),
        (adapter(source={"huggingFace": {"repo": "a/b/c"}}), "spec.source.huggingFace.repo"),
        (adapter(source={**s3(), "adapterName": ""}), "spec.source.adapterName"),
        (adapter(sauce="x"), 'unknown field "spec.sauce"'),
        (pool(sidecarPort=0), "spec.sidecarPort"),
        (pool(selector=None), "spec.selector: Required value"),
        (adapter(poolRef={"name": "main", "namespace": "Not_One"}), "spec.poolRef.namespace"),
        (pool(tenants=[{"namespaceSelector": {"names": ["a"]}}]), "name: Required value"),
        (tenants(quota={"adapters": -1}), "quota.adapters"),
        (tenants(quota={"loadsPerMinute": 0}), "quota.loadsPerMinute"),
        (tenants(quota={"transferBytesPerSecond": "0"}), "quota.transferBytesPerSecond"),
        (pool(tenants=[*TENANT, *TENANT]), "Duplicate value"),
        (grant(to=[{"kind": "Secret"}]), 'supported values: "EnginePool", "ServedName"'),
        (grant(**{"from": []}), "spec.from"),
    ],
)
def test_the_schema_refuses_what_has_the_wrong_shape(
    kube: KubeRest, namespace: str, manifest: Json, text: str
) -> None:
    with pytest.raises(Refused) as refusal:
        kube.create(path(manifest["kind"], namespace), manifest)
    assert text in str(refusal.value)


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        "org/adapter",
        "org/adapter@v2",
        "Org/Adapter",
        "with space",
        "ünïcode",
        "日本",
        "a..b",
        "..",
        "../../etc",
        "/abs",
        "",
        "x" * 254,
        "tab\t",
        "rtl\u202e",
        "private\ue000",
        "line\u2028",
        "trail ",
        "org/a@3f2a9c001122",
        "org/a@sha256:3f2a9c001122",
        "org/a@3f2a9c001122-b",
        "org/a@" + "3" * 65,
        "@3f2a9c001122",
    ],
)
def test_server_and_operator_agree_on_served_names(
    kube: KubeRest, namespace: str, name: str
) -> None:
    refusal = None
    try:
        kube.create(path("LoRAAdapter", namespace), adapter(servedName=name))
    except Refused as refused:
        refusal = str(refused)
    problem = names.served_name_problem(name)
    assert (refusal is None) == (problem is None)
    for line in (refusal, problem):
        assert line is None or "invalid adapter name" in line
