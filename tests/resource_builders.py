"""Manifests with good defaults; keyword arguments replace fields of the spec."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]
API_VERSION = "lorafleet.dev/v1alpha1"


def adapter(name: str = "sql", **spec: Any) -> Json:
    """A LoRAAdapter that the API server takes. `field=None` leaves the field out."""
    return _resource(
        "LoRAAdapter",
        name,
        {
            "baseModel": "tiny/qwen3-dense",
            "poolRef": {"name": "main"},
            "source": {"http": {"url": "https://models.example/sql/"}},
            **spec,
        },
    )


def pool(name: str = "main", **spec: Any) -> Json:
    """An EnginePool that the API server takes. `field=None` leaves the field out."""
    return _resource(
        "EnginePool",
        name,
        {
            "baseModel": "tiny/qwen3-dense",
            "selector": {"matchLabels": {"app": "vllm"}},
            **spec,
        },
    )


def grant(name: str = "grant", **spec: Any) -> Json:
    """An AdapterGrant that the API server takes."""
    given = {"from": [{"namespace": "team-a"}], "to": [{"kind": "EnginePool"}], **spec}
    return _resource("AdapterGrant", name, given)


def path(kind: str, namespace: str, name: str = "", subresource: str = "") -> str:
    """The path of a resource, or of the list of its kind."""
    plural = f"{kind.lower()}s"
    parts = [f"/apis/{API_VERSION}/namespaces/{namespace}/{plural}", name, subresource]
    return "/".join(part for part in parts if part)


def _resource(kind: str, name: str, spec: Json) -> Json:
    given = {field: value for field, value in spec.items() if value is not None}
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {"name": name},
        "spec": given,
    }
