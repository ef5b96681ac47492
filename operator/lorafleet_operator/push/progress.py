"""What has come of an adapter's pushed revisions, from its status and from what engines say. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lorafleet.v1alpha1 import push_pb2 as pb

from lorafleet_operator.api.conditions import ConditionType
from lorafleet_operator.api.v1alpha1 import EngineHealth

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lorafleet_operator.world import EngineView


def status_of(body: Mapping[str, Any], engines: Iterable[EngineView]) -> pb.PushStatus:
    """Return what is known of the adapter of `body` on these engines of its pool."""
    metadata, status = body["metadata"], body.get("status") or {}
    push = body["spec"]["source"].get("push") or {}
    found = pb.PushStatus(
        revision=push.get("revision") or "",
        step=push.get("step") or 0,
        generation=metadata["generation"],
        observed_generation=status.get("observedGeneration") or 0,
    )
    for condition in status.get("conditions") or ():
        if condition["type"] == ConditionType.READY:
            found.ready = condition["status"] == "True"
            found.reason = condition.get("reason") or ""
            found.message = condition.get("message") or ""
    key = f"{metadata['namespace']}/{metadata['name']}"
    known = {each["fingerprint"]: each for each in status.get("pushed") or ()}
    for view in engines:
        for entry in view.loaded(key):
            if not entry.published or not view.takes_orders:
                continue
            staged = view.staged(entry.digest)
            content = staged.fingerprint if staged is not None else ""
            served = known.get(content) or {}
            revision = served.get("revision") or content
            found.engines.add(
                pod=view.pod.name,
                revision=revision,
                step=found.step if revision == found.revision else served.get("step"),
                digest=entry.digest if view.health is EngineHealth.READY else "",
            )
    return found
