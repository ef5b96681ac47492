"""The chart's RBAC rules on a real API server: what the operator does is allowed, no more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from chart_role import RELEASE, SHARDS, token
from kube_rest import KubeRest, Refused
from lorafleet_operator.api.names import API_VERSION, CONDITION_WARM
from resource_builders import adapter, path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from localcluster import LocalCluster


@pytest.fixture
def operator(cluster: LocalCluster, kube: KubeRest, namespace: str) -> Iterator[KubeRest]:
    """A client with the rights of the operator in one namespace."""
    mine = token(kube, namespace)
    with KubeRest(cluster.kubeconfig) as rest:
        rest.client.headers["Authorization"] = f"Bearer {mine}"
        yield rest


def test_the_operator_may_do_what_it_does(
    operator: KubeRest, kube: KubeRest, namespace: str
) -> None:
    kube.create(path("LoRAAdapter", namespace), adapter())
    kube.create(f"/api/v1/namespaces/{namespace}/secrets", {"metadata": {"name": "keys"}})
    here = f"/api/v1/namespaces/{namespace}"
    assert len(operator.get(path("LoRAAdapter", namespace))["items"]) == 1
    assert operator.get(path("EnginePool", namespace))["items"] == []
    assert operator.get(path("AdapterGrant", namespace))["items"] == []
    assert operator.get(f"{here}/pods")["items"] == []
    assert operator.get(f"{here}/secrets/keys")["metadata"]["name"] == "keys"
    finalizer = {"metadata": {"finalizers": ["lorafleet.dev/unload"]}}
    operator.merge(path("LoRAAdapter", namespace, "sql"), finalizer)
    operator.merge(path("LoRAAdapter", namespace, "sql", "status"), {"status": {"rank": 1}})
    about = {
        "apiVersion": API_VERSION,
        "kind": "LoRAAdapter",
        "name": "sql",
        "namespace": namespace,
    }
    event = {"metadata": {"generateName": "sql."}, "involvedObject": about, "reason": "Loaded"}
    operator.create(f"{here}/events", event)
    slices = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
    routes = f"/apis/gateway.networking.k8s.io/v1/namespaces/{namespace}/httproutes"
    named = {"metadata": {"name": "lora-sql"}}
    operator.create(f"{here}/services", {**named, "spec": {"ports": [{"port": 80}]}})
    operator.create(slices, {**named, "addressType": "IPv4", "endpoints": []})
    for where in (f"{here}/services", slices):
        assert len(operator.get(where)["items"]) == 1
        operator.merge(f"{where}/lora-sql", {"metadata": {"labels": {"a": "b"}}})
        operator.delete(f"{where}/lora-sql")
    for verb in ("GET", "DELETE", "PATCH"):  # 404: this cluster has no Gateway API
        assert operator.client.request(verb, f"{routes}/lora-sql").status_code == 404
    assert operator.client.post(routes, json=named).status_code == 404


def test_the_operator_may_hold_the_leases_of_its_shards_and_no_others(
    operator: KubeRest, namespace: str
) -> None:
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"

    def named(name: str) -> dict[str, Any]:
        spec = {"holderIdentity": "operator", "leaseDurationSeconds": 15}
        return {"metadata": {"name": name}, "spec": spec}

    for shard in range(SHARDS):
        made = operator.create(leases, named(f"{RELEASE}-{shard}"))
        again = operator.client.put(f"{leases}/{RELEASE}-{shard}", json=made)
        assert again.status_code == 200
    assert len(operator.get(leases)["items"]) == SHARDS
    other = operator.create(leases, named("somebody-else"))
    for place in (f"{leases}/somebody-else", f"{leases}/{RELEASE}-{SHARDS}"):
        assert operator.client.put(place, json=other).status_code == 403
    assert operator.client.delete(f"{leases}/{RELEASE}-0").status_code == 403
    elsewhere = leases.replace(namespace, "kube-system")
    assert operator.client.get(elsewhere).status_code == 403


def test_the_operator_may_say_that_a_pod_is_warm_and_change_nothing_else_of_it(
    operator: KubeRest, kube: KubeRest, namespace: str
) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    spec = {
        "containers": [{"name": "vllm", "image": "local.invalid/none"}],
        "readinessGates": [{"conditionType": CONDITION_WARM}],
    }
    made = kube.create(pods, {"metadata": {"name": "engine-0"}, "spec": spec})

    def say(uid: str) -> None:
        warm = {"type": CONDITION_WARM, "status": "True", "reason": "Warm", "message": "so"}
        patch = {"metadata": {"uid": uid}, "status": {"conditions": [warm]}}
        kind = {"Content-Type": "application/strategic-merge-patch+json"}
        answer = operator.client.patch(f"{pods}/engine-0/status", json=patch, headers=kind)
        if answer.is_error:
            raise Refused(answer)

    with pytest.raises(Refused) as refusal:
        say("another")
    assert refusal.value.status in (409, 422), "a pod of the same name is another one"
    say(made["metadata"]["uid"])
    conditions = kube.get(f"{pods}/engine-0")["status"]["conditions"]
    assert [each["type"] for each in conditions if each["status"] == "True"] == [CONDITION_WARM]
    with pytest.raises(Refused) as refusal:
        operator.merge(f"{pods}/engine-0", {"metadata": {"labels": {"a": "b"}}})
    assert refusal.value.status == 403


@pytest.mark.parametrize(
    ("method", "where"),
    [
        ("GET", "/api/v1/namespaces/{}/secrets"),
        ("GET", "/api/v1/namespaces/{}/secrets?watch=1&timeoutSeconds=1"),
        ("GET", "/api/v1/namespaces/default/secrets/keys"),
        ("DELETE", "/apis/lorafleet.dev/v1alpha1/namespaces/{}/loraadapters/sql"),
        ("DELETE", "/api/v1/namespaces/{}/pods/engine-0"),
        ("GET", "/apis/lorafleet.dev/v1alpha1/loraadapters"),
        ("GET", "/api/v1/namespaces/{}/services/lora-sql"),
        ("GET", "/api/v1/services"),
        ("GET", "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices/lora-sql"),
        ("GET", "/apis/gateway.networking.k8s.io/v1/namespaces/{}/httproutes"),
    ],
)
def test_the_operator_may_do_no_more(
    operator: KubeRest, namespace: str, method: str, where: str
) -> None:
    call = {"GET": operator.get, "DELETE": operator.delete}[method]
    with pytest.raises(Refused) as refusal:
        call(where.format(namespace))
    assert refusal.value.status == 403
