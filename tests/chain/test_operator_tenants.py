"""Tenants of several namespaces on one pool, through the whole chain: grants, names, quotas, slots."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from operator_chain import GROUP, Chain
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kube_rest import KubeRest

pytestmark = [pytest.mark.cluster, pytest.mark.chain]


class Guest:
    """Another namespace, whose adapters want the pool of the chain's."""

    def __init__(self, chain: Chain, namespace: str) -> None:
        self.chain = chain
        self.namespace = namespace

    def adapter(self, name: str, **spec: Any) -> None:
        here, self.chain.namespace = self.chain.namespace, self.namespace
        try:
            self.chain.adapter(name, poolRef={"name": "pool", "namespace": here}, **spec)
        finally:
            self.chain.namespace = here

    def ready(self, name: str) -> tuple[str, str, str]:
        found = self.chain.custom.get_namespaced_custom_object(
            *GROUP, self.namespace, "loraadapters", name
        )
        conditions = (found.get("status") or {}).get("conditions", [])
        ready = next((c for c in conditions if c["type"] == "Ready"), {})
        return tuple(ready.get(key, "") for key in ("status", "reason", "message"))  # type: ignore[return-value]


@pytest.fixture
def guest(chain: Chain, kube: KubeRest) -> Iterator[Guest]:
    namespace = f"{chain.namespace}-guest"
    labels = {"team": uuid.uuid4().hex}
    kube.create("/api/v1/namespaces", {"metadata": {"name": namespace, "labels": labels}})
    guest = Guest(chain, namespace)
    yield guest
    for item in kube.get(f"/apis/lorafleet.dev/v1alpha1/namespaces/{namespace}/loraadapters")[
        "items"
    ]:
        where = f"/apis/lorafleet.dev/v1alpha1/namespaces/{namespace}/loraadapters"
        kube.merge(f"{where}/{item['metadata']['name']}", {"metadata": {"finalizers": None}})
        kube.delete(f"{where}/{item['metadata']['name']}")
    kube.delete(f"/api/v1/namespaces/{namespace}")


def test_tenants_share_a_pool_as_it_and_its_namespace_allow(
    chain: Chain, guest: Guest, kube: KubeRest
) -> None:
    labels = kube.get(f"/api/v1/namespaces/{guest.namespace}")["metadata"]["labels"]
    chain.start_engine("engine-0", 0)
    chain.start_operator(LORAFLEET_NAMESPACES="")
    chain.pool(
        tenants=[
            {
                "name": "guest",
                "namespaceSelector": {"matchLabels": {"team": labels["team"]}},
                "quota": {"adapters": 1},
                "guarantee": {"slots": 1},
            }
        ]
    )
    here, there = chain.namespace, guest.namespace
    guest.adapter("one")
    line = f"namespace {here} holds no AdapterGrant from namespace {there} to EnginePool pool"
    eventually(lambda: guest.ready("one") == ("False", "NotGranted", line))

    spec = {"from": [{"namespace": there}], "to": [{"kind": "EnginePool", "name": "pool"}]}
    chain._create("adaptergrants", "AdapterGrant", "guests", spec)
    eventually(lambda: guest.ready("one")[0] == "True")
    assert chain.served("engine-0") == {f"{there}/one"}

    guest.adapter("two")
    eventually(lambda: guest.ready("two")[1] == "QuotaExceeded")
    assert guest.ready("two")[2] == "tenant guest has 1 of 1 adapters"

    name = f"{there}/three"
    chain.adapter("thief", servedName=name)
    eventually(lambda: chain.condition("thief", "Ready") == ("False", "NotGranted"))
    message = chain.full_condition("thief", "Ready")["message"]
    assert message == (
        f"namespace {there} holds no AdapterGrant from namespace {here} to ServedName {name}"
    )
    assert chain.served("engine-0") == {f"{there}/one"}

    chain.delete("adaptergrants", "guests")
    eventually(lambda: guest.ready("one") == ("False", "NotGranted", line))
    eventually(lambda: chain.served("engine-0") == set())
