"""The checks that an engine must pass to get an adapter, and how many engines a policy wants.

Each check returns None or a Refusal. `FILTERS` look at facts that no other adapter changes and
run in the order of the list; `capacity_refusal` looks at what the plan has put there so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lorafleet_operator.api.conditions import Reason
from lorafleet_operator.api.v1alpha1 import EngineHealth, PlacementPolicy

if TYPE_CHECKING:
    from .engines import AdapterDemand, EngineSnapshot


@dataclass(frozen=True)
class PlacementSettings:
    """Limits of placement.

    max_adapters_per_engine: most adapters on one engine, None for no limit but the arena.
    Slots are no such limit: the engine's LRU lets adapters share them (only pinned ones do not).
    """

    max_adapters_per_engine: int | None = None


@dataclass(frozen=True)
class Refusal:
    """Why an engine does not get an adapter: a reason for programs, a line for people."""

    reason: Reason
    text: str


@dataclass
class Load:
    """What the plan has put on one engine so far."""

    adapters: int = 0
    pinned: int = 0
    size_bytes: int = 0

    def add(self, adapter: AdapterDemand) -> None:
        """Count one more adapter."""
        self.adapters += 1
        self.pinned += adapter.pinned
        self.size_bytes += adapter.size_bytes or 0


Filter = Callable[["AdapterDemand", "EngineSnapshot"], Refusal | None]


def _healthy(_: AdapterDemand, engine: EngineSnapshot) -> Refusal | None:
    if engine.healthy:
        return None
    words = {
        EngineHealth.UNREACHABLE: "sidecar does not answer",
        EngineHealth.STARTING: "vLLM is starting",
        EngineHealth.REFUSED: "takes no adapters",
    }[engine.health]
    text = f"{words}: {engine.health_message}" if engine.health_message else words
    return Refusal(Reason.NO_MATCHING_ENGINES, text)


def _same_base(adapter: AdapterDemand, engine: EngineSnapshot) -> Refusal | None:
    if not engine.base_models or not adapter.base_model:
        return None
    if adapter.base_model in engine.base_models:
        return None
    text = f"serves {engine.base_models[0]}, the adapter wants {adapter.base_model}"
    return Refusal(Reason.BASE_MODEL_MISMATCH, text)


def _rank_fits(adapter: AdapterDemand, engine: EngineSnapshot) -> Refusal | None:
    if not engine.max_lora_rank or adapter.rank is None or adapter.rank <= engine.max_lora_rank:
        return None
    text = f"LoRA rank {adapter.rank} is greater than max_lora_rank {engine.max_lora_rank}"
    return Refusal(Reason.RANK_TOO_HIGH, text)


def _plugin_for_pinned(adapter: AdapterDemand, engine: EngineSnapshot) -> Refusal | None:
    if adapter.pinned and engine.health is EngineHealth.STOCK:
        return Refusal(Reason.PLUGIN_INACTIVE, "pinned needs the plugin, which is not live")
    return None


def _fits_at_all(adapter: AdapterDemand, engine: EngineSnapshot) -> Refusal | None:
    if adapter.size_bytes is None or adapter.size_bytes <= engine.capacity_bytes:
        return None
    text = f"needs {mebibytes(adapter.size_bytes)}, may use {mebibytes(engine.capacity_bytes)}"
    return Refusal(Reason.TOO_LARGE, text)


def _not_cordoned(adapter: AdapterDemand, engine: EngineSnapshot) -> Refusal | None:
    if engine.cordoned and not adapter.on(engine):
        return Refusal(Reason.NO_MATCHING_ENGINES, "is cordoned")
    return None


FILTERS: Final[tuple[Filter, ...]] = (
    _healthy,  # first: nothing else is known of an engine that does not answer
    _same_base,
    _rank_fits,
    _plugin_for_pinned,
    _fits_at_all,
    _not_cordoned,  # last: the lasting reasons are more use to a person
)


def filter_refusal(adapter: AdapterDemand, engine: EngineSnapshot) -> Refusal | None:
    """Return the first filter's refusal, None if the engine could take the adapter."""
    for check in FILTERS:
        refusal = check(adapter, engine)
        if refusal:
            return refusal
    return None


def capacity_refusal(
    adapter: AdapterDemand, engine: EngineSnapshot, load: Load, settings: PlacementSettings
) -> Refusal | None:
    """Return why `engine`, with `load` on it already, has no room for one more adapter."""
    limit = settings.max_adapters_per_engine
    if limit is not None and load.adapters >= limit:
        return Refusal(Reason.NO_CAPACITY, f"has {load.adapters} of {limit} adapters")
    # One slot stays free of pinned adapters, or no other adapter could ever be activated.
    if adapter.pinned and load.pinned >= engine.max_loras - 1:
        text = f"has {load.pinned} pinned adapters for {engine.max_loras} GPU slots, one stays free"
        return Refusal(Reason.NO_CAPACITY, text)
    size = adapter.size_bytes or 0
    free = engine.capacity_bytes - load.size_bytes
    if size > free:
        text = (
            f"needs {mebibytes(size)}, {mebibytes(max(free, 0))} of"
            f" {mebibytes(engine.capacity_bytes)} are free"
        )
        return Refusal(Reason.NO_CAPACITY, text)
    # Room in sum, but not in one piece, and nothing to evict for it. Engines that have the
    # adapter, or are receiving it, hold the piece already.
    evictable = engine.arena_used_bytes > engine.arena_in_use_bytes
    if size > engine.arena_largest_free_bytes and not evictable and not adapter.on(engine):
        text = (
            f"needs {mebibytes(size)} in one piece, the largest free one has"
            f" {mebibytes(engine.arena_largest_free_bytes)}"
        )
        return Refusal(Reason.NO_CAPACITY, text)
    return None


def wanted_engines(adapter: AdapterDemand, engines: Iterable[EngineSnapshot]) -> int:
    """Return how many engines should serve `adapter`.

    Spread: its replicas. All: the engines that could take it, with room or without, those that
    refuse adapters (a person has to mend them), and those that had it and are down. An engine
    that only starts for the first time, serves another base model or too small a rank, or is
    cordoned, is none of them.
    """
    if adapter.policy is PlacementPolicy.SPREAD:
        return adapter.replicas
    return sum(_counts_for_all(adapter, engine) for engine in engines)


def _counts_for_all(adapter: AdapterDemand, engine: EngineSnapshot) -> bool:
    if not engine.healthy:
        return engine.health is EngineHealth.REFUSED or adapter.on(engine)
    return filter_refusal(adapter, engine) is None


def mebibytes(size: int) -> str:
    """Return `size` bytes for people, rounded up to a tenth of a MiB."""
    tenths = -(-size * 10 // (1 << 20))
    return f"{tenths // 10}.{tenths % 10} MiB"
