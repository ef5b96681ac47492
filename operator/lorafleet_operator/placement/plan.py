"""plan(): the engines of every adapter, with the reason for each choice.

Two passes. The first leaves adapters where they are, as far as that is still allowed; only then
the second places what is missing. So a new engine, or an adapter that goes, moves nothing, and
the result depends on neither the order of the arguments nor on earlier calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lorafleet_operator.api.conditions import Reason
from lorafleet_operator.api.v1alpha1 import PlacementPolicy

from .policies import (
    Load,
    PlacementSettings,
    Refusal,
    capacity_refusal,
    filter_refusal,
    wanted_engines,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from .engines import AdapterDemand, EngineSnapshot

_NAMED_ENGINES: Final = 5
"""How many engines a message names before it only counts them."""


@dataclass(frozen=True)
class PlacementPlan:
    """What should be where. Adapters by key, engines by pod name, both sorted.

    `assignments` has every adapter, also those with no engine; `blocked` those that get fewer
    engines than `wanted` says, with the reason of condition Placed; `why` says for each engine
    why it was chosen or not.
    """

    assignments: Mapping[str, tuple[str, ...]]
    wanted: Mapping[str, int]
    blocked: Mapping[str, tuple[Reason, str]]
    why: Mapping[str, Mapping[str, str]]


def plan(
    adapters: Iterable[AdapterDemand],
    engines: Iterable[EngineSnapshot],
    settings: PlacementSettings | None = None,
    *,
    explain: Collection[str] | None = None,
) -> PlacementPlan:
    """Return the engines of every adapter of one pool.

    adapters: every adapter of the pool that is not being deleted, each key once. engines: every engine of the pool, each
    pod name once. explain: keys to explain in `why`; None explains all.
    """
    board = _Board(sorted(engines, key=lambda e: e.pod_name), settings or PlacementSettings())
    # Pinned first: there are fewer places for them.
    ordered = sorted(adapters, key=lambda a: (not a.pinned, a.key))
    for adapter in ordered:
        board.keep(adapter)
    for adapter in ordered:
        board.fill(adapter)
    by_key = sorted(ordered, key=lambda a: a.key)
    blocked = {a.key: block for a in by_key if (block := board.blocked(a))}
    return PlacementPlan(
        assignments={a.key: tuple(sorted(board.chosen[a.key])) for a in by_key},
        wanted={a.key: board.wanted[a.key] for a in by_key},
        blocked=blocked,
        why={a.key: board.why(a) for a in by_key if explain is None or a.key in explain},
    )


class _Board:
    """The plan while it is made: what each engine carries, what each adapter has."""

    def __init__(self, engines: list[EngineSnapshot], settings: PlacementSettings) -> None:
        self.engines = engines
        self.settings = settings
        self.load = {engine.pod_name: Load() for engine in engines}
        self.chosen: dict[str, dict[str, str]] = {}  # adapter -> engine -> why
        self.refused: dict[str, dict[str, Refusal]] = {}
        self.wanted: dict[str, int] = {}

    def keep(self, adapter: AdapterDemand) -> None:
        """Leave `adapter` on the engines that have it, at most as many as it wants."""
        refused = {
            engine.pod_name: refusal
            for engine in self.engines
            if (refusal := filter_refusal(adapter, engine))
        }
        self.refused[adapter.key] = refused
        self.chosen[adapter.key] = {}
        self.wanted[adapter.key] = wanted_engines(adapter, self.engines)
        holders = [
            engine
            for engine in self.engines
            if adapter.on(engine) and engine.pod_name not in refused
        ]
        # Too many after a scale-down or a recovery: leave those on their way out, those that
        # have yet to load it, and the fullest.
        holders.sort(
            key=lambda e: (e.cordoned, adapter.key not in e.loaded, len(e.loaded), e.pod_name)
        )
        for engine in holders:
            held = adapter.key in engine.loaded
            self._try(adapter, engine, "has it already" if held else "was chosen before")

    def fill(self, adapter: AdapterDemand) -> None:
        """Choose engines for what `adapter` still misses, those with fewest adapters first."""
        refused, chosen = self.refused[adapter.key], self.chosen[adapter.key]
        candidates = [
            engine
            for engine in self.engines
            if engine.pod_name not in chosen and engine.pod_name not in refused
        ]
        candidates.sort(key=lambda e: (self.load[e.pod_name].adapters, e.pod_name))
        for engine in candidates:
            if adapter.policy is PlacementPolicy.ALL:
                why = "policy All takes every engine"
            else:
                why = f"fewest adapters ({self.load[engine.pod_name].adapters})"
            self._try(adapter, engine, why)

    def _try(self, adapter: AdapterDemand, engine: EngineSnapshot, why: str) -> None:
        chosen, load = self.chosen[adapter.key], self.load[engine.pod_name]
        if len(chosen) >= self.wanted[adapter.key]:
            return
        refusal = capacity_refusal(adapter, engine, load, self.settings)
        if refusal:
            self.refused[adapter.key][engine.pod_name] = refusal
        else:
            load.add(adapter)
            chosen[engine.pod_name] = why

    def blocked(self, adapter: AdapterDemand) -> tuple[Reason, str] | None:
        """Return why `adapter` gets fewer engines than it wants, None if it gets them all."""
        refused, chosen = self.refused[adapter.key], self.chosen[adapter.key]
        wanted = self.wanted[adapter.key]
        if chosen and len(chosen) >= wanted:
            return None
        if not self.engines:
            return Reason.NO_MATCHING_ENGINES, "the pool has no engines"
        details = [f"{name}: {refusal.text}" for name, refusal in sorted(refused.items())]
        shown = details[:_NAMED_ENGINES]
        if len(details) > len(shown):
            shown.append(f"and {len(details) - len(shown)} more")
        counts = f"{len(chosen)} of {max(wanted, 1)} engines"
        if not refused:
            return Reason.NO_CAPACITY, f"{counts}: the pool has {len(self.engines)}"
        reasons = {refusal.reason for refusal in refused.values()}
        short = adapter.policy is PlacementPolicy.SPREAD and bool(chosen)
        return _summary(reasons, short=short), f"{counts}: {'; '.join(shown)}"

    def why(self, adapter: AdapterDemand) -> dict[str, str]:
        """Return one line for each engine."""
        refused, chosen = self.refused[adapter.key], self.chosen[adapter.key]
        enough = f"not needed: {len(chosen)} of {self.wanted[adapter.key]} engines chosen"
        lines = {}
        for engine in self.engines:
            name = engine.pod_name
            if name in chosen:
                lines[name] = f"chosen: {chosen[name]}"
            elif name in refused:
                lines[name] = f"refused: {refused[name].text}"
            else:
                lines[name] = enough
        return lines


def _summary(reasons: set[Reason], *, short: bool) -> Reason:
    """Return one reason for all refusals; `short`: some replicas are placed, others have no place."""
    if Reason.NO_CAPACITY in reasons or short:
        return Reason.NO_CAPACITY
    if len(reasons) == 1:
        return next(iter(reasons))
    return Reason.NO_MATCHING_ENGINES
