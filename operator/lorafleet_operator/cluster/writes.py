"""What the operator writes: status, Events and one condition of engine pods, never a spec.

Status is one merge patch per pass, sent only when something changed. There is one writer, so
there is no conflict to resolve; a stale cache could only make us write the same again.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from lorafleet_operator.api import names
from lorafleet_operator.cluster.requests import (
    MERGE_PATCH,
    STRATEGIC_MERGE_PATCH,
    NoAnswer,
    ask,
    one_line,
    path,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kubernetes.aio import client

    from lorafleet_operator.cluster.bodies import Bodies
    from lorafleet_operator.cluster.reads import EnginePod

_LOG: Final = logging.getLogger(__name__)
_COMPONENT: Final = "lorafleet-operator"
_MAX_EVENT: Final = 1024
_KINDS: Final = {
    names.ADAPTER_KIND: (names.GROUP, names.VERSION, names.ADAPTER_PLURAL),
    names.POOL_KIND: (names.GROUP, names.VERSION, names.POOL_PLURAL),
}
_PODS: Final = ("", "v1", "pods")
_EVENTS: Final = ("", "v1", "events")


class StatusWriter:
    """Writes the status of adapters and pools; the answers go to where the newest bodies are."""

    def __init__(self, api: client.ApiClient, bodies: Bodies) -> None:
        self._api = api
        self._bodies = bodies

    async def write(self, kind: str, body: dict[str, Any], status: Mapping[str, Any]) -> bool:
        """Make `status` the object's; return whether that took a request.

        An object that is gone by now counts as written. Raises NoAnswer.
        """
        metadata = body["metadata"]
        patch = merge_patch(self._bodies.newest(body).get("status") or {}, status)
        if not patch:
            return False
        place = path(_KINDS[kind], metadata["namespace"], metadata["name"], "status")
        change = {"metadata": {"uid": metadata["uid"]}, "status": patch}
        try:
            with one_line(f"the status of {metadata['name']}"):
                answer = await ask(self._api, "PATCH", place, change, content_type=MERGE_PATCH)
        except NoAnswer as error:
            if error.status in (404, 409):  # gone, or another object of that name by now
                return False
            raise
        self._bodies.answered(answer)
        return True


async def set_warm(
    api: client.ApiClient,
    pod: EnginePod,
    *,
    open_: bool,
    reason: str,
    message: str,
    now: datetime,
) -> bool:
    """Set the pod's condition lorafleet.dev/warm; return whether the pod was still there.

    Raises NoAnswer.
    """
    condition = {
        "type": names.CONDITION_WARM,
        "status": "True" if open_ else "False",
        "reason": reason,
        "message": message[:_MAX_EVENT],
        "lastTransitionTime": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    patch = {"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}}
    place = path(_PODS, pod.namespace, pod.name, "status")
    try:
        with one_line(f"the status of pod {pod.key}"):
            await ask(api, "PATCH", place, patch, content_type=STRATEGIC_MERGE_PATCH)
    except NoAnswer as error:
        if error.status in (404, 409, 422):  # gone, or another pod of that name by now
            return False
        if error.status == 403:
            _LOG.warning("the operator may not patch the status of pod %s", pod.key)
            return False
        raise
    return True


def merge_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merge patch that turns `old` into `new`: empty when they are equal."""
    patch: dict[str, Any] = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            if inner := merge_patch(before, value):
                patch[key] = inner
        elif value != before:
            patch[key] = value
    return patch


async def post_event(
    api: client.ApiClient,
    kind: str,
    body: Mapping[str, Any],
    *,
    type_: Literal["Normal", "Warning"],
    reason: str,
    message: str,
) -> None:
    """Post an Event about the object. A failure is logged: Events are for people only."""
    metadata = body["metadata"]
    now = datetime.now(UTC)
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "generateName": f"{metadata['name'][:200]}.",
            "namespace": metadata["namespace"],
        },
        "involvedObject": {
            "apiVersion": names.API_VERSION,
            "kind": kind,
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
        },
        "type": type_,
        "reason": reason,
        "message": message[:_MAX_EVENT],
        "firstTimestamp": now.isoformat(),
        "lastTimestamp": now.isoformat(),
        "count": 1,
        "source": {"component": _COMPONENT},
        "reportingComponent": _COMPONENT,
        "reportingInstance": _COMPONENT,
    }
    try:
        with one_line(f"event {reason} about {metadata['name']}"):
            await ask(api, "POST", path(_EVENTS, metadata["namespace"]), event)
    except NoAnswer as error:
        _LOG.warning("cannot post %s", error)
