"""Which LoRAAdapter names what is pushed: the one that is there, or one that is made. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lorafleet.errors import InvalidAdapter

from lorafleet_operator.api import names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lorafleet.v1alpha1 import push_pb2 as pb


def new_spec(manifest: pb.PushManifest, push: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec of an adapter that its first push makes. Raises InvalidAdapter."""
    for field, value in (("base_model", manifest.base_model), ("pool", manifest.pool)):
        if not value:
            raise InvalidAdapter(
                f"there is no LoRAAdapter {manifest.namespace}/{manifest.name}, "
                f"and the push names no {field} to make it with"
            )
    pool = {"name": manifest.pool}
    if manifest.pool_namespace:
        pool["namespace"] = manifest.pool_namespace
    spec = {"baseModel": manifest.base_model, "poolRef": pool, "source": {"push": dict(push)}}
    if manifest.served_name:
        spec["servedName"] = manifest.served_name
    if manifest.atomic:
        spec["rollout"] = {"atomic": True}
    return spec


def check_agrees(manifest: pb.PushManifest, body: Mapping[str, Any]) -> None:
    """Raise InvalidAdapter unless the adapter that is there takes this push."""
    spec, key = body["spec"], f"{manifest.namespace}/{manifest.name}"
    if body["metadata"].get("deletionTimestamp"):
        raise InvalidAdapter(f"LoRAAdapter {key} is being deleted")
    if spec["source"].get("push") is None:
        there = next(
            (kind for kind in spec["source"] if isinstance(spec["source"][kind], dict)), ""
        )
        raise InvalidAdapter(f"LoRAAdapter {key} has source {there}, a push needs source.push")
    pool = spec["poolRef"]
    for field, given, found in (
        ("baseModel", manifest.base_model, spec["baseModel"]),
        ("pool", manifest.pool, pool["name"]),
        (
            "pool's namespace",
            manifest.pool_namespace,
            pool.get("namespace") or manifest.namespace,
        ),
        (
            "servedName",
            manifest.served_name,
            spec.get("servedName") or names.default_served_name(manifest.namespace, manifest.name),
        ),
    ):
        if given and given != found:
            raise InvalidAdapter(f"LoRAAdapter {key} has {field} {found}, the push names {given}")
    if manifest.atomic and not (spec.get("rollout") or {}).get("atomic"):
        raise InvalidAdapter(
            f"LoRAAdapter {key} has rollout.atomic false, the push asks for it: edit the adapter"
        )


def pool_of(spec: Mapping[str, Any], namespace: str) -> str:
    """Return the key of the pool that a spec names."""
    pool = spec["poolRef"]
    return names.pool_key(pool.get("namespace") or namespace, pool["name"])
