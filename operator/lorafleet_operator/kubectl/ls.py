"""`kubectl lora ls`: the adapters of a namespace or of all, page by page as they come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lorafleet_operator.api import names
from lorafleet_operator.kubectl import adapters, api
from lorafleet_operator.kubectl.text import age, size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lorafleet_operator.kubectl.api import Kubectl
    from lorafleet_operator.kubectl.views import AdapterView

HEAD: Final = ("NAME", "BASE MODEL", "ENGINES", "READY", "REASON", "TIER", "REVISION", "AGE")
WIDE: Final = (
    "POOL",
    "SERVED NAME",
    "RESIDENCY",
    "STEP",
    "SIZE",
    "IN FLIGHT",
    "SERVED BY",
    "MESSAGE",
)
_NAMED_ENGINES: Final = 3


def pages(
    kubectl: Kubectl, namespace: str, pool: str = "", selector: str = ""
) -> Iterator[tuple[str, list[AdapterView]]]:
    """Yield the adapters of a namespace ("": of all) page by page, each with the list's version.

    pool: name, or `<namespace>/<name>`, of the only pool whose adapters are wanted. Raises Failed.
    """
    place = api.path(names.ADAPTER_PLURAL, namespace)
    for page in kubectl.pages(place, _query(selector)):
        found = [adapters.view(body) for body in adapters.each(page, "items")]
        yield adapters.text(page, "metadata", "resourceVersion"), wanted(found, pool)


def changes(
    kubectl: Kubectl, namespace: str, version: str, pool: str = "", selector: str = ""
) -> Iterator[tuple[str, AdapterView]]:
    """Yield what changes from a list's version on: ADDED, MODIFIED or DELETED, and the adapter.

    Raises Failed.
    """
    place = api.path(names.ADAPTER_PLURAL, namespace)
    for change in kubectl.watch(place, version, _query(selector)):
        for found in wanted([adapters.view(change["object"])], pool):
            yield adapters.text(change, "type"), found


def wanted(found: list[AdapterView], pool: str) -> list[AdapterView]:
    """Return those of a pool, all without one."""
    return [a for a in found if not pool or pool in (a["pool"], a["pool"].partition("/")[2])]


def head(*, everywhere: bool, wide: bool) -> list[str]:
    """Return the columns."""
    return [*(["NAMESPACE"] if everywhere else []), *HEAD, *(WIDE if wide else ())]


def row(adapter: AdapterView, *, everywhere: bool, wide: bool) -> list[str]:
    """Return the cells of one adapter."""
    reason = adapter["reason"] or ("" if adapter["ready"] else "NotLookedAt")
    cells = [adapter["namespace"]] if everywhere else []
    cells += [
        adapter["name"],
        adapter["baseModel"],
        f"{adapter['readyEngines']}/{adapter['desiredEngines']}" if adapter["ready"] else "",
        adapter["ready"],
        "Deleting" if adapter["deleting"] else reason,
        adapter["tier"],
        short(adapter["revision"]) + ("*" if adapter["pinnedRevision"] else ""),
        age(adapter["created"]),
    ]
    if wide:
        named = adapter["engines"][:_NAMED_ENGINES]
        rest = len(adapter["engines"]) - len(named)
        cells += [
            adapter["pool"],
            adapter["servedName"],
            adapter["residency"],
            adapter["step"],
            size(adapter["sizeBytes"]),
            str(adapter["inFlight"]),
            ",".join(named) + (f",+{rest}" if rest else ""),
            adapter["message"],
        ]
    return cells


def short(digest: str) -> str:
    """Return the part of a digest that people are shown in columns, and may give back."""
    return digest.removeprefix("sha256:")[:12]


def _query(selector: str) -> dict[str, str]:
    return {"labelSelector": selector} if selector else {}
