"""The example of a ResourceQuota on a real API server: it counts adapters and refuses one more."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import yaml
from kube_rest import KubeRest, Refused
from resource_builders import adapter, path

EXAMPLE = Path(__file__).resolve().parents[2] / "charts/lorafleet/examples/resourcequota.yaml"


def _create_until_refused(kube: KubeRest, namespace: str) -> None:
    for number in range(300):  # the admission has read the quota within seconds
        kube.create(path("LoRAAdapter", namespace), adapter(f"a-{number}"))
        time.sleep(0.2)


def test_a_namespace_holds_as_many_adapters_as_its_quota_says(
    kube: KubeRest, namespace: str
) -> None:
    quota = yaml.safe_load(EXAMPLE.read_text())
    (counted,) = quota["spec"]["hard"]
    del quota["metadata"]["namespace"]
    quota["spec"]["hard"][counted] = "1"
    where = f"/api/v1/namespaces/{namespace}/resourcequotas"
    kube.create(where, quota)
    # What the quota controller does, of which this cluster has none.
    status = {"status": {"hard": {counted: "1"}, "used": {counted: "0"}}}
    kube.merge(f"{where}/{quota['metadata']['name']}/status", status)
    with pytest.raises(Refused) as refusal:
        _create_until_refused(kube, namespace)
    assert refusal.value.status == 403
    assert f"exceeded quota: adapters, requested: {counted}=1" in str(refusal.value)
