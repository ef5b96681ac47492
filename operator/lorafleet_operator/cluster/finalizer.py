"""Our finalizer on an adapter: put on before an engine is told anything, taken off at the end.

Both are JSON patches that hold only for the version that was read: a merge patch would write the
whole list, and with it over a finalizer that somebody else has just added or removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lorafleet_operator.api import names
from lorafleet_operator.cluster.requests import JSON_PATCH, NoAnswer, ask, one_line, path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kubernetes.aio import client


class Overtaken(RuntimeError):
    """Raised when the object has changed since it was read: look again."""


def is_held(body: Mapping[str, Any]) -> bool:
    """Return whether the object carries our finalizer."""
    return names.FINALIZER in (body["metadata"].get("finalizers") or ())


async def hold(api: client.ApiClient, plural: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Put the finalizer on an object without it; return the object then.

    Raises Overtaken, NoAnswer.
    """
    change: dict[str, Any]
    if "finalizers" in body["metadata"]:
        change = {"op": "add", "path": "/metadata/finalizers/-", "value": names.FINALIZER}
    else:
        change = {"op": "add", "path": "/metadata/finalizers", "value": [names.FINALIZER]}
    return await _patch(api, plural, body, change)


async def release(api: client.ApiClient, plural: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Take the finalizer off an object that carries it; return the object then.

    Raises Overtaken, NoAnswer.
    """
    place = body["metadata"]["finalizers"].index(names.FINALIZER)
    change = {"op": "remove", "path": f"/metadata/finalizers/{place}"}
    return await _patch(api, plural, body, change)


async def _patch(
    api: client.ApiClient, plural: str, body: Mapping[str, Any], change: dict[str, Any]
) -> dict[str, Any]:
    metadata = body["metadata"]
    test = {
        "op": "test",
        "path": "/metadata/resourceVersion",
        "value": metadata["resourceVersion"],
    }
    key = f"{metadata['namespace']}/{metadata['name']}"
    kind = (names.GROUP, names.VERSION, plural)
    place = path(kind, metadata["namespace"], metadata["name"])
    try:
        with one_line(f"the finalizer of {key}"):
            return await ask(api, "PATCH", place, [test, change], content_type=JSON_PATCH)
    except NoAnswer as error:
        if error.status in (404, 409, 422):  # gone, or another version by now
            raise Overtaken(key) from None
        raise
