"""Services, EndpointSlices and HTTPRoutes of ours: as they were last seen, and how they are written.

Services and slices are followed by watches; of an HTTPRoute, whose kind a cluster may lack, is known
what was last read or written here. Nothing is written that is already so, and nothing that somebody
else has made is touched: an object is ours if it has our label.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from aiohttp import ClientError
from kubernetes.aio import client

from lorafleet_operator.api.conditions import Reason
from lorafleet_operator.api.names import LABEL_ROUTES_TO
from lorafleet_operator.cluster.requests import JSON, MERGE_PATCH, Kind, ask, path

if TYPE_CHECKING:
    from collections.abc import Mapping

SERVICE: Final = "Service"
SLICE: Final = "EndpointSlice"
ROUTE: Final = "HTTPRoute"
_GATEWAY: Final = ("gateway.networking.k8s.io", "v1")
_KINDS: Final[dict[str, Kind]] = {
    SERVICE: ("", "v1", "services"),
    SLICE: ("discovery.k8s.io", "v1", "endpointslices"),
    ROUTE: (*_GATEWAY, "httproutes"),
}
_ASK_AGAIN_SECONDS: Final = 60.0
_SELECTOR: Final = "selector"

Json = dict[str, Any]
Key = tuple[str, str, str]
"""Kind, namespace, name."""


class NotWritten(Exception):
    """Raised when an object could not be made as it should be; the text is one line for people."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(frozen=True)
class Seen:
    """An object as it was last seen."""

    uid: str
    version: int
    owner: str
    """UID of the adapter or pool that it is for."""
    body: Mapping[str, Any]


class Owned:
    """The objects that lead requests to engines."""

    def __init__(self, api: client.ApiClient) -> None:
        self._api = api
        self._seen: dict[Key, Seen] = {}
        self._of: defaultdict[str, set[Key]] = defaultdict(set)
        self._has_routes = False
        self._ask_again = 0.0

    # What there is.

    def note(self, kind: str, body: Mapping[str, Any], *, gone: bool = False) -> bool:
        """Take an object as a watch or an answer gave it; return whether it was changed by others."""
        metadata = body["metadata"]
        key = (kind, metadata["namespace"], metadata["name"])
        before = self._seen.get(key)
        version = int(metadata["resourceVersion"])
        if gone:
            if before is None or before.uid != metadata["uid"]:
                return False
            self._forget(key)
            return True
        if before is not None and before.uid == metadata["uid"] and before.version >= version:
            return False
        owners = metadata.get("ownerReferences") or [{}]
        pruned = _content(body)
        self._forget(key)
        self._seen[key] = Seen(metadata["uid"], version, owners[0].get("uid", ""), pruned)
        self._of[self._seen[key].owner].add(key)
        return before is not None and before.body != pruned

    def of(self, owner: str) -> dict[Key, Mapping[str, Any]]:
        """Return the objects of an adapter or pool, by its UID."""
        return {key: self._seen[key].body for key in self._of.get(owner, ())}

    def owner_of(self, body: Mapping[str, Any]) -> tuple[str, str]:
        """Return kind and key, `<namespace>/<name>`, of whom the object is for."""
        metadata = body["metadata"]
        owner = next(iter(metadata.get("ownerReferences") or [{}]))
        return owner.get("kind", ""), f"{metadata['namespace']}/{owner.get('name', '')}"

    async def has_routes(self, now: float) -> bool:
        """Return whether the cluster knows HTTPRoutes; asked once, and again while it does not."""
        if self._has_routes:
            return True
        if now < self._ask_again:
            return False
        self._ask_again = now + _ASK_AGAIN_SECONDS
        try:
            answer = await ask(self._api, "GET", "/".join(("/apis", *_GATEWAY)))
        except client.ApiException as error:
            if error.status == 404:
                return False
            raise NotWritten(Reason.ROUTE_REFUSED, f"{_GATEWAY[0]}: {_said(error)}") from None
        except (ClientError, TimeoutError) as error:
            raise NotWritten(Reason.ROUTE_REFUSED, f"the API server: {error}") from None
        self._has_routes = any(each["kind"] == ROUTE for each in answer["resources"])
        return self._has_routes

    # Writing.

    async def put(self, body: Json) -> bool:
        """Make the object be as `body` says; return whether that took a write. Raises NotWritten."""
        metadata = body["metadata"]
        key = (body["kind"], metadata["namespace"], metadata["name"])
        if key[0] == ROUTE and key not in self._seen:
            await self._look(key)
        seen = self._seen.get(key)
        if seen is None:
            await self._ask("POST", key, body)
            return True
        patch = difference(seen.body, _content(body))
        if not patch:
            return False
        patch.setdefault("metadata", {})["uid"] = seen.uid
        if not await self._ask("PATCH", key, patch):
            await self._ask("POST", key, body)  # it was deleted, and no watch has told yet
        return True

    async def remove(self, key: Key) -> bool:
        """Delete the object, if it is ours; return whether that took a write. Raises NotWritten."""
        if key[0] == ROUTE and key not in self._seen:
            await self._look(key)
        seen = self._seen.get(key)
        if seen is None:
            return False
        await self._ask("DELETE", key, {"preconditions": {"uid": seen.uid}})
        self._forget(key)
        return True

    async def _look(self, key: Key) -> None:
        """Read one HTTPRoute; one that is not ours counts as not there."""
        try:
            found = await ask(self._api, "GET", path(_KINDS[key[0]], key[1], key[2]))
        except client.ApiException as error:
            if error.status == 404:
                return
            raise NotWritten(Reason.ROUTE_REFUSED, _line(key, error)) from None
        except (ClientError, TimeoutError) as error:
            raise NotWritten(Reason.ROUTE_REFUSED, f"the API server: {error}") from None
        if LABEL_ROUTES_TO in (found["metadata"].get("labels") or {}):
            self.note(ROUTE, found)

    async def _ask(self, verb: str, key: Key, body: Json) -> bool:
        """Send one write; return False if the object is gone. Raises NotWritten."""
        try:
            answer = await self._call(verb, key, body)
        except client.ApiException as error:
            if error.status == 404 and verb != "POST":
                self._forget(key)
                return False
            if error.status == 409 and verb == "POST":
                text = f"{key[0]} {key[2]} exists and is not the operator's; rename or delete it"
                raise NotWritten(Reason.ROUTE_NAME_TAKEN, text) from None
            raise NotWritten(Reason.ROUTE_REFUSED, _line(key, error)) from None
        except (ClientError, TimeoutError) as error:
            raise NotWritten(Reason.ROUTE_REFUSED, f"the API server: {error}") from None
        if verb != "DELETE":
            self.note(key[0], answer)
        return True

    async def _call(self, verb: str, key: Key, body: Json) -> Json:
        kind, namespace, name = key
        place = path(_KINDS[kind], namespace, "" if verb == "POST" else name)
        content_type = MERGE_PATCH if verb == "PATCH" else JSON
        return await ask(self._api, verb, place, body, content_type=content_type)

    def _forget(self, key: Key) -> None:
        seen = self._seen.pop(key, None)
        if seen is not None:
            self._of[seen.owner].discard(key)
            if not self._of[seen.owner]:
                del self._of[seen.owner]


def _content(body: Mapping[str, Any]) -> Json:
    """Return what of an object is written and compared."""
    apart = ("apiVersion", "kind", "metadata", "status")
    metadata = {name: body["metadata"].get(name) for name in ("labels", "ownerReferences")}
    return {"metadata": metadata} | {k: v for k, v in body.items() if k not in apart}


def difference(seen: Mapping[str, Any], wanted: Mapping[str, Any]) -> Json:
    """Return what of `wanted` is not in `seen`, as a merge patch: empty if all of it is.

    What the server or others have added beside it stays.
    """
    patch: Json = {}
    for key, value in wanted.items():
        before = seen.get(key)
        if isinstance(value, dict):
            known = before if isinstance(before, dict) else {}
            inner = difference(known, value)
            if key == _SELECTOR:  # all of it is ours: what is not wanted goes
                inner |= dict.fromkeys(known.keys() - value.keys())
            if inner:
                patch[key] = inner
        elif not _holds(before, value):
            patch[key] = value
    return patch


def _holds(seen: Any, wanted: Any) -> bool:
    """Return whether `seen` is `wanted`, but for fields that the server has added."""
    if isinstance(wanted, dict):
        return isinstance(seen, dict) and all(
            _holds(seen.get(key), value) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        seen = seen or []
        return len(seen) == len(wanted) and all(map(_holds, seen, wanted))
    return bool(seen == wanted)


def _line(key: Key, error: client.ApiException) -> str:
    return f"{key[0]} {key[2]}: {_said(error)}"


def _said(error: client.ApiException) -> str:
    """Return what the API server said, in one line."""
    try:
        said = str(json.loads(error.body or "")["message"])
    except (ValueError, KeyError, TypeError):
        said = f"{error.status} {error.reason}"
    return " ".join(said.split())
