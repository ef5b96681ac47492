"""A LoRAAdapter as the API server gives it -> what is shown of it. Pure.

The body may be one that no operator has looked at, or the work of an older or newer one: a field that
is not there, or is something else than it was, counts as unknown and stops nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from lorafleet_operator.api import names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lorafleet_operator.kubectl.views import AdapterView, RevisionView, Tiers

TIERS: Final = ("gpu", "host", "staged", "source")
Body = dict[str, Any]


def at(body: object, *path: str) -> Any:
    """Return what is at a path of objects, None if nothing is."""
    for key in path:
        body = body.get(key) if isinstance(body, dict) else None
    return body


def text(body: object, *path: str) -> str:
    """Return the text at a path, "" if there is none."""
    found = at(body, *path)
    return found if isinstance(found, str) else ""


def number(body: object, *path: str) -> int | None:
    """Return the integer at a path, None if there is none."""
    found = at(body, *path)
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def each(body: object, *path: str) -> Iterator[Body]:
    """Yield the objects of the list at a path."""
    found = at(body, *path)
    yield from (one for one in (found if isinstance(found, list) else ()) if isinstance(one, dict))


def condition(body: Body, type_: str) -> Body:
    """Return a condition of the status, {} if it is not there."""
    found = each(body, "status", "conditions")
    return next((one for one in found if one.get("type") == type_), {})


def pool_of(body: Body) -> str:
    """Return the key of the pool that an adapter names."""
    namespace = text(body, "spec", "poolRef", "namespace") or text(body, "metadata", "namespace")
    return names.pool_key(namespace, text(body, "spec", "poolRef", "name"))


def observed(body: Body) -> bool:
    """Return whether the status is about the present spec."""
    generation = number(body, "metadata", "generation")
    return generation is not None and number(body, "status", "observedGeneration") == generation


def view(body: Body) -> AdapterView:
    """Return what is shown of an adapter."""
    ready, engines = condition(body, "Ready"), list(each(body, "status", "engines"))
    namespace, name = text(body, "metadata", "namespace"), text(body, "metadata", "name")
    tiers = {tier: sum(text(one, "tier") == tier for one in engines) for tier in TIERS}
    return {
        "namespace": namespace,
        "name": name,
        "pool": pool_of(body),
        "baseModel": text(body, "spec", "baseModel"),
        "servedName": text(body, "status", "servedName")
        or text(body, "spec", "servedName")
        or names.default_served_name(namespace, name),
        "ready": text(ready, "status"),
        "reason": text(ready, "reason"),
        "message": text(ready, "message"),
        "readyEngines": number(body, "status", "readyEngines") or 0,
        "desiredEngines": number(body, "status", "desiredEngines") or 0,
        "engines": sorted(text(one, "podName") for one in engines if one.get("published") is True),
        "tier": text(body, "status", "tierSummary"),
        "tiers": cast("Tiers", tiers),
        "residency": text(body, "status", "residency") or text(body, "spec", "residency"),
        "step": text(body, "status", "stepSummary"),
        "revision": text(body, "status", "digest"),
        "pinnedRevision": text(body, "spec", "revision"),
        "sizeBytes": number(body, "status", "sizeBytes"),
        "rank": number(body, "status", "rank"),
        "inFlight": sum(number(one, "inFlight") or 0 for one in engines),
        "created": text(body, "metadata", "creationTimestamp"),
        "observed": observed(body),
        "deleting": bool(text(body, "metadata", "deletionTimestamp")),
    }


def asked_by(body: Body, field: str) -> tuple[str, str]:
    """Return which field manager owns a field of the spec, and when it last wrote; else two ""."""
    newest = ("", "")
    for entry in each(body, "metadata", "managedFields"):
        own = at(entry, "fieldsV1", "f:spec", f"f:{field}")
        if own is not None and not entry.get("subresource") and text(entry, "time") >= newest[1]:
            newest = text(entry, "manager"), text(entry, "time")
    return newest


def revisions(body: Body) -> list[RevisionView]:
    """Return the revisions of an adapter that its status tells of, newest first."""
    status = at(body, "status")
    current, stable = text(status, "digest"), text(status, "stable", "digest")
    trial, bad = text(status, "canary", "digest"), text(status, "rolledBack", "digest")
    draining = {text(one, "digest"): one for one in each(status, "draining")}
    kept = at(status, "history")
    history = [one for one in kept if isinstance(one, str)] if isinstance(kept, list) else []
    field = "revision" if text(body, "spec", "revision") else "source"
    found = []
    for digest in dict.fromkeys(
        one for one in (trial, current, stable, *history, *draining, bad) if one
    ):
        serving = [
            one
            for one in each(status, "engines")
            if text(one, "digest") == digest and one.get("published") is True
        ]
        drains = draining.get(digest)
        if digest == bad:
            state, time = "given up", text(status, "rolledBack", "time")
        elif digest == trial:
            state, time = "trial", text(status, "canary", "since")
        elif digest == current:
            state, time = "current", _first(text(one, "lastTransitionTime") for one in serving)
        else:
            state, time = ("draining" if drains and digest not in history else "earlier"), ""
        one: RevisionView = {
            "digest": digest,
            "state": state,
            "stable": digest == stable,
            "time": time,
            "askedBy": asked_by(body, field)[0] if digest in (current, trial) else "",
            "staged": True if digest in history or serving else None,
            "engines": len(serving),
            "inFlight": number(drains, "inFlight")
            if drains
            else sum(number(each_, "inFlight") or 0 for each_ in serving) or None,
            "message": text(status, "rolledBack", "message") if digest == bad else "",
        }
        found.append(one)
    return found


def _first(times: Iterable[str]) -> str:
    return min((time for time in times if time), default="")
