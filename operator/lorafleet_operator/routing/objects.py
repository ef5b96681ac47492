"""Services, EndpointSlices and HTTPRoutes as the API server takes them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lorafleet_operator.api import names

from .names import Role, service_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lorafleet_operator.api.v1alpha1 import EnginePool

    from .endpoints import Endpoint, Intent

Json = dict[str, Any]

SERVICE_PORT: Final = 80
_PORT_NAME: Final = "http"
_SLICE_OF: Final = "kubernetes.io/service-name"
_SLICE_MANAGER: Final = "endpointslice.kubernetes.io/managed-by"


def adapter_service(intent: Intent, role: Role) -> Json:
    """Return a Service without a selector: its slices say who is behind it."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(intent, service_name(role, intent.name)),
        "spec": {"ports": [_service_port(intent.port)]},
    }


def endpoint_slice(intent: Intent, role: Role, name: str, endpoints: Sequence[Endpoint]) -> Json:
    """Return one slice of the Service that the adapter has for `role`."""
    metadata = _metadata(intent, name)
    metadata["labels"] |= {
        _SLICE_OF: service_name(role, intent.name),
        _SLICE_MANAGER: names.GROUP,
    }
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": metadata,
        "addressType": endpoints[0].family if endpoints else "IPv4",
        "ports": [{"name": _PORT_NAME, "port": intent.port, "protocol": "TCP"}],
        "endpoints": [_endpoint(each) for each in endpoints],
    }


def http_route(intent: Intent, weights: Mapping[Role, int]) -> Json:
    """Return the HTTPRoute that sends requests to the adapter's Services by weight."""
    wanted = intent.http_route
    assert wanted is not None
    parent = {"name": wanted.gateway, "namespace": wanted.gateway_namespace}
    if wanted.section:
        parent["sectionName"] = wanted.section
    backends = [
        {"name": service_name(role, intent.name), "port": SERVICE_PORT, "weight": weight}
        for role, weight in weights.items()
    ]
    rule: Json = {"backendRefs": backends}
    if wanted.model_header:
        header = {"type": "Exact", "name": wanted.model_header, "value": intent.served_name}
        rule["matches"] = [{"headers": [header]}]
    spec: Json = {
        "parentRefs": [parent],
        "hostnames": [wanted.hostname] if wanted.hostname else [],
        "rules": [rule],
    }
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": _metadata(intent, service_name(Role.ADAPTER, intent.name)),
        "spec": spec,
    }


def pool_service(pool: EnginePool) -> Json:
    """Return the Service that selects the pool's pods."""
    metadata = pool.metadata
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": service_name(Role.POOL, metadata.name),
            "namespace": metadata.namespace,
            "labels": {names.LABEL_ROUTES_TO: "pool"},
            "ownerReferences": [_owner(names.POOL_KIND, metadata.name, metadata.uid)],
        },
        "spec": {
            "ports": [_service_port(pool.spec.engine_port)],
            "selector": dict(pool.spec.selector.match_labels),
        },
    }


def _metadata(intent: Intent, name: str) -> Json:
    return {
        "name": name,
        "namespace": intent.namespace,
        "labels": {names.LABEL_ROUTES_TO: "adapter"},
        "ownerReferences": [_owner(names.ADAPTER_KIND, intent.name, intent.uid)],
    }


def _owner(kind: str, name: str, uid: str) -> Json:
    return {
        "apiVersion": names.API_VERSION,
        "kind": kind,
        "name": name,
        "uid": uid,
        "controller": True,
    }


def _service_port(port: int) -> Json:
    return {"name": _PORT_NAME, "port": SERVICE_PORT, "targetPort": port, "protocol": "TCP"}


def _endpoint(each: Endpoint) -> Json:
    found: Json = {
        "addresses": [each.address],
        "conditions": {
            "ready": each.ready,
            "serving": each.serving,
            "terminating": each.terminating,
        },
        "targetRef": {
            "kind": "Pod",
            "namespace": each.namespace,
            "name": each.pod,
            "uid": each.uid,
        },
    }
    if each.node:
        found["nodeName"] = each.node
    if each.zone:
        found["zone"] = each.zone
    return found
