"""`kubectl lora top`: engines and the busiest adapters, once or again and again."""

from __future__ import annotations

import heapq
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from lorafleet_operator.api import names
from lorafleet_operator.kubectl import adapters, api, engines
from lorafleet_operator.kubectl.ls import short
from lorafleet_operator.kubectl.text import Table, cut, printable, size
from lorafleet_operator.kubectl.views import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lorafleet_operator.kubectl.api import Kubectl
    from lorafleet_operator.kubectl.views import AdapterView, EngineView, Top

ENGINES: Final = (
    "ENGINE",
    "POOL",
    "HEALTH",
    "TRAFFIC",
    "LOADED",
    "SLOTS",
    "STAGED",
    "PINNED",
    "LOADS",
    "GROWTH",
    "EVICTED",
    "IN FLIGHT",
    "MESSAGE",
)
ADAPTERS: Final = (
    "ADAPTER",
    "READY",
    "ENGINES",
    "GPU",
    "HOST",
    "STAGED",
    "SIZE",
    "IN FLIGHT",
    "REVISION",
    "REASON",
)

_KEY: Final = ("namespace", "name")


def look(kubectl: Kubectl, namespace: str, *, busiest: int, port: int, live: bool) -> Top:
    """Return engines and the busiest adapters of a namespace ("": of all).

    The adapters are read page by page, and `busiest` of them are kept. What may not be read is left
    out with a note. live: whether sidecars are asked, at `port`. Raises Failed without adapters.
    """
    has: defaultdict[tuple[str, str], engines.Held] = defaultdict(engines.Held)
    total = ready = 0
    pools: set[str] = set()

    def seen() -> Iterator[AdapterView]:
        nonlocal total, ready
        for body in kubectl.items(api.path(names.ADAPTER_PLURAL, namespace)):
            found = adapters.view(body)
            total, ready = total + 1, ready + (found["ready"] == "True")
            pools.add(found["pool"])
            for entry in adapters.each(body, "status", "engines"):
                has[found["pool"], adapters.text(entry, "podName")].add(entry)
            yield found

    shown = heapq.nsmallest(busiest, seen(), key=_busiest_first)
    known, notes = _pools(kubectl, namespace, pools)
    if not namespace:  # every adapter was seen, so these are all that engines have
        known = [_with(one, has.get((one["pool"], one["pod"]))) for one in known]
    rest = engines.of_adapters(has, known)
    if rest:
        notes.append(
            f"{len(rest)} engines are shown as these adapters' statuses tell of them, no more"
        )
    if live:
        known, said = engines.asked(kubectl, known, port)
        notes += said
    return {
        "apiVersion": VERSION,
        "kind": "Top",
        "engines": [*known, *rest],
        "adapters": shown,
        "totalAdapters": total,
        "readyAdapters": ready,
        "notes": notes,
    }


def lines(
    found: Top, *, clock: str = "", columns: int = 0, height: int = 0, colour: bool = False
) -> list[str]:
    """Return it for people; engines get at most half of a `height`, if one is given."""

    def short_of(line: str) -> str:
        return cut(line, columns) if columns else line

    head = f"{len(found['engines'])} engines, {found['readyAdapters']} of {found['totalAdapters']}"
    parts = [short_of(f"{clock}{head} adapters ready")]
    room = max(2, height // 2 - 3) if height else len(found["engines"])
    if found["engines"]:
        table = Table(ENGINES, colour=colour, columns=columns)
        parts += ["", *table.lines(map(_engine, found["engines"][:room]))]
        if len(found["engines"]) > room:
            parts.append(short_of(f"and {len(found['engines']) - room} more engines"))
    if found["adapters"]:
        table = Table(ADAPTERS, colour=colour, columns=columns)
        parts += ["", *table.lines(map(_adapter, found["adapters"]))]
        if found["totalAdapters"] > len(found["adapters"]):
            more = found["totalAdapters"] - len(found["adapters"])
            parts.append(short_of(f"and {more} more adapters"))
    notes = [short_of(printable(f"note: {note}")) for note in found["notes"]]
    if height:  # tables lose their end before the notes go
        parts = parts[: max(height - len(notes) - 1, 1)]
    return [*parts, *notes]


def _busiest_first(each: AdapterView) -> tuple[int, bool, str, str]:
    return -each["inFlight"], each["ready"] == "True", each["namespace"], each["name"]


def _pools(kubectl: Kubectl, namespace: str, used: set[str]) -> tuple[list[EngineView], list[str]]:
    """Return the engines of the namespace's pools and of those in others that its adapters use."""
    bodies: dict[str, dict[str, Any]] = {}
    notes = []
    try:
        for body in kubectl.items(api.path(names.POOL_PLURAL, namespace)):
            metadata = adapters.at(body, "metadata")
            bodies[names.pool_key(*(adapters.text(metadata, e) for e in _KEY))] = body
    except api.Failed as error:
        notes.append(f"no EnginePools: {error}")
    for key in sorted(used - bodies.keys()) if namespace else ():
        where, _, name = key.partition("/")
        if where == namespace:
            continue  # it was in the list, or is none, or may not be read
        try:
            bodies[key] = kubectl.get(api.path(names.POOL_PLURAL, where, name))
        except api.Failed as error:
            notes.append(f"no EnginePool {key}: {error}")
    return [each for key in sorted(bodies) for each in engines.of_pool(bodies[key])], notes


def _with(engine: EngineView, held: engines.Held | None) -> EngineView:
    held = held or engines.Held()
    return {**engine, "slotsUsed": held.slots, "inFlight": held.in_flight}


def _engine(each: EngineView) -> list[object]:
    return [
        f"{each['namespace']}/{each['pod']}",
        each["pool"].partition("/")[2],
        each["health"],
        each["traffic"],
        _number(each["adapters"]),
        _of(_number(each["slotsUsed"]), _number(each["slots"])),
        _of(size(each["stagedBytes"]), size(each["arenaBytes"])),
        size(each["pinnedBytes"]),
        _number(each["loads"]),
        size(each["growthPerLoad"]),
        _number(each["evictions"]),
        _number(each["inFlight"]),
        each["message"] or (each["recycleDue"] and f"to be recycled: {each['recycleDue']}"),
    ]


def _adapter(each: AdapterView) -> list[object]:
    tiers = each["tiers"]
    return [
        f"{each['namespace']}/{each['name']}",
        each["ready"],
        f"{each['readyEngines']}/{each['desiredEngines']}" if each["ready"] else "",
        tiers["gpu"],
        tiers["host"],
        tiers["staged"],
        size(each["sizeBytes"]),
        each["inFlight"],
        short(each["revision"]),
        each["reason"],
    ]


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _of(used: str, limit: str) -> str:
    return f"{used or '-'}/{limit or '-'}" if used or limit else ""
