"""What there is: engines as their sidecars see them, in the planner's terms."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from lorafleet_operator.api.v1alpha1 import EngineHealth

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


@dataclass(frozen=True)
class EngineSnapshot:
    """One engine of the pool at one moment. Sizes are bytes.

    `base_models` empty, `max_lora_rank`, `max_cpu_loras` and `arena_limit_bytes` 0 mean that
    nobody knows them yet; unknown facts refuse nothing, except that an arena of unknown size has
    no room.
    """

    pod_name: str
    node: str = ""
    zone: str = ""
    health: EngineHealth = EngineHealth.READY
    health_message: str = ""
    base_models: tuple[str, ...] = ()  # every name under which the base model is served
    tensor_parallel_size: int = 1
    max_lora_rank: int = 0
    max_loras: int = 0  # GPU slots
    max_cpu_loras: int = 0
    loaded: Collection[str] = field(default_factory=frozenset)  # keys of adapters
    staged: Collection[str] = field(default_factory=frozenset)  # digests of revisions
    arena_limit_bytes: int = 0
    arena_used_bytes: int = 0
    arena_in_use_bytes: int = 0  # of those, what the engine may read: never evicted
    arena_largest_free_bytes: int = 0
    budget_bytes: int | None = None  # EnginePool's hostMemoryBudget
    max_adapters: int | None = None  # EnginePool's maxAdaptersPerEngine
    idle_seconds: Mapping[str, int] = field(default_factory=dict, compare=False)
    """Since a request last asked for what is loaded, by adapter, as of the last look."""
    cordoned: bool = False  # keeps what it has, gets nothing new
    leaving: bool = False  # is being drained or deleted: others get what it has

    @cached_property
    def capacity_bytes(self) -> int:
        """How many arena bytes placement may use."""
        if self.budget_bytes is None:
            return self.arena_limit_bytes
        return min(self.arena_limit_bytes, self.budget_bytes)

    @property
    def healthy(self) -> bool:
        """Whether the engine takes adapters now."""
        return self.health in (EngineHealth.READY, EngineHealth.STOCK)

    @cached_property
    def largest_piece_bytes(self) -> int:
        """The largest new extent that the arena takes: any, if something can be evicted for it."""
        if self.arena_used_bytes > self.arena_in_use_bytes:
            return self.capacity_bytes
        return self.arena_largest_free_bytes

    @cached_property
    def kind(self) -> tuple[object, ...]:
        """All that filters and capacity look at: engines of one kind differ in their load alone."""
        return (
            self.health,
            self.base_models,
            self.tensor_parallel_size,
            self.max_lora_rank,
            self.max_loras,
            self.max_cpu_loras,
            self.capacity_bytes,
            self.max_adapters,
            self.cordoned,
            self.leaving,
        )
