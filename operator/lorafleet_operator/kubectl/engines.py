"""Engines: what a pool's status tells of them, and their sidecars' metrics of this moment.

The metrics come through the API server (pods/proxy), where that is allowed; without them the numbers
that only a sidecar knows are null.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from lorafleet_operator.kubectl import adapters, api

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lorafleet_operator.kubectl.api import Kubectl
    from lorafleet_operator.kubectl.views import EngineView

MOST_ASKED: Final = 100
"""Engines whose sidecars are asked."""
_AT_A_TIME: Final = 8
_MOST_BYTES: Final = 4 << 20
_TEXTS: Final = ("pool", "health", "traffic", "message", "recycleDue")
_NUMBERS: Final = (
    "adapters",
    "slots",
    "slotsUsed",
    "stagedBytes",
    "arenaBytes",
    "pinnedBytes",
    "loads",
    "growthPerLoad",
    "evictions",
    "inFlight",
)
_SAMPLE: Final = re.compile(r"^(lorafleet_\w+)(?:\{([^}]*)\})? (\S+)", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')


@dataclass
class Held:
    """What adapters have of one engine."""

    slots: int = 0
    loaded: int = 0
    in_flight: int = 0

    def add(self, entry: dict[str, Any]) -> None:
        """Count an entry of an adapter's status.engines."""
        tier = adapters.text(entry, "tier")
        self.slots += tier == "gpu"
        self.loaded += tier in ("gpu", "host")
        self.in_flight += adapters.number(entry, "inFlight") or 0


def of_pool(pool: dict[str, Any]) -> list[EngineView]:
    """Return the engines that a pool's status names, at most a hundred."""
    metadata = pool.get("metadata")
    namespace, name = adapters.text(metadata, "namespace"), adapters.text(metadata, "name")
    return [
        _view(
            namespace,
            adapters.text(one, "podName"),
            pool=f"{namespace}/{name}",
            health=adapters.text(one, "health"),
            traffic=adapters.text(one, "traffic"),
            message=adapters.text(one, "message"),
            adapters=adapters.number(one, "loaded"),
            slots=adapters.number(one, "maxLoras"),
            stagedBytes=adapters.number(one, "arenaUsedBytes"),
            arenaBytes=adapters.number(one, "arenaLimitBytes"),
            loads=adapters.number(one, "loads"),
            growthPerLoad=adapters.number(one, "hostGrowthPerLoad"),
            recycleDue=adapters.text(one, "recycleDue"),
        )
        for one in adapters.each(pool, "status", "engines")
    ]


def of_adapters(
    has: Mapping[tuple[str, str], Held], known: Iterable[EngineView]
) -> list[EngineView]:
    """Return the engines that adapters' statuses name and that are not among the `known`.

    Of those nobody tells more than what these adapters have there.
    """
    there = {(one["pool"], one["pod"]) for one in known}
    return [
        _view(pool.partition("/")[0], pod, pool=pool, adapters=held.loaded, slotsUsed=held.slots)
        for (pool, pod), held in sorted(has.items())
        if (pool, pod) not in there
    ]


def asked(
    kubectl: Kubectl, engines: list[EngineView], port: int
) -> tuple[list[EngineView], list[str]]:
    """Return the engines with what their sidecars say now, and a note for what could not be had."""
    if not engines:
        return [], []
    first, *others = engines[:MOST_ASKED]
    answers = {_key(first): _ask(kubectl, first, port)}
    refused = answers[_key(first)]
    if not (isinstance(refused, api.Failed) and refused.reason == "Forbidden"):
        with ThreadPoolExecutor(_AT_A_TIME) as pool:
            told = pool.map(lambda engine: _ask(kubectl, engine, port), others)
            answers |= dict(zip(map(_key, others), told, strict=True))
    failures = [answer for answer in answers.values() if isinstance(answer, api.Failed)]
    notes = []
    if failures:
        more = f" ({len(failures)} of {len(engines)} engines)" if len(engines) > 1 else ""
        notes.append(f"no live figures of engines{more}: {failures[0]}")
    if len(engines) > MOST_ASKED:
        notes.append(f"live figures of the first {MOST_ASKED} engines only")
    return [_merged(engine, answers.get(_key(engine))) for engine in engines], notes


def parsed(text: str) -> dict[str, Any]:
    """Return the fields of an EngineView that a sidecar's metrics tell."""
    by_name: defaultdict[str, list[tuple[dict[str, str], float]]] = defaultdict(list)
    for name, labels, value in _SAMPLE.findall(text):
        with suppress(ValueError):
            if math.isfinite(found := float(value)):
                by_name[name].append((dict(_LABEL.findall(labels)), found))

    def ranks(name: str, **only: str) -> dict[str, float]:
        sums: defaultdict[str, float] = defaultdict(float)
        for labels, value in by_name[name]:
            if only.items() <= labels.items():
                sums[labels.get("rank", "")] += value
        return sums

    def worst(name: str, **only: str) -> int | None:
        return round(max(ranks(name, **only).values())) if ranks(name, **only) else None

    # The arena is one copy that every rank has registered; each rank has copies of its own.
    pins = "lorafleet_engine_pinned_bytes"
    arena, copies = worst(pins, kind="arena"), sum(ranks(pins, kind="copy").values())
    told = {
        "slots": worst("lorafleet_engine_slots"),
        "slotsUsed": worst("lorafleet_engine_adapters", tier="gpu"),
        "stagedBytes": worst("lorafleet_sidecar_staging_bytes", state="used"),
        "arenaBytes": worst("lorafleet_sidecar_staging_limit_bytes"),
        "pinnedBytes": (arena or 0) + round(copies) if by_name[pins] else None,
        "loads": worst("lorafleet_engine_loads_total"),
        "evictions": worst("lorafleet_engine_evictions_total"),
        "inFlight": worst("lorafleet_engine_requests_in_flight"),
    }
    return {name: value for name, value in told.items() if value is not None}


def _ask(kubectl: Kubectl, engine: EngineView, port: int) -> str | api.Failed:
    try:
        namespace, pod = api.named(engine["namespace"]), api.named(engine["pod"])
        place = f"/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy/metrics"
        return kubectl.text(place, most_bytes=_MOST_BYTES)
    except api.Failed as error:
        return error


def _key(engine: EngineView) -> tuple[str, str, str]:
    return engine["namespace"], engine["pool"], engine["pod"]


def _merged(engine: EngineView, answer: str | api.Failed | None) -> EngineView:
    if not isinstance(answer, str):
        return engine
    return cast("EngineView", {**engine, **parsed(answer), "live": True})


def _view(namespace: str, pod: str, **known: object) -> EngineView:
    nothing = {**dict.fromkeys(_TEXTS, ""), **dict.fromkeys(_NUMBERS)}
    found = {"namespace": namespace, "pod": pod, **nothing, **known, "live": False}
    return cast("EngineView", found)
