"""What planning looks at: engines as their sidecars see them, adapters as people want them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lorafleet_operator.api.v1alpha1 import EngineHealth, PlacementPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lorafleet_operator.api.v1alpha1 import LoRAAdapter


@dataclass(frozen=True)
class EngineSnapshot:
    """One engine of the pool at one moment. Sizes are bytes.

    `base_models` empty, `max_lora_rank` 0 and `arena_limit_bytes` 0 mean that nobody knows them
    yet; unknown facts refuse nothing, except that an arena of unknown size has no room.
    """

    pod_name: str
    pod_uid: str = ""
    instance: str = ""  # changes with every start of vLLM
    node: str = ""
    health: EngineHealth = EngineHealth.READY
    health_message: str = ""
    base_models: tuple[str, ...] = ()  # every name under which the base model is served
    max_lora_rank: int = 0
    max_loras: int = 0  # GPU slots
    max_cpu_loras: int = 0
    loaded: Mapping[str, frozenset[str]] = field(default_factory=dict)  # adapter -> digests
    arena_limit_bytes: int = 0
    arena_used_bytes: int = 0
    arena_in_use_bytes: int = 0  # of those, what the engine may read: never evicted
    arena_largest_free_bytes: int = 0
    budget_bytes: int | None = None  # EnginePool's hostMemoryBudget
    cordoned: bool = False  # keeps what it has, gets nothing new

    @property
    def capacity_bytes(self) -> int:
        """Return how many arena bytes placement may use."""
        if self.budget_bytes is None:
            return self.arena_limit_bytes
        return min(self.arena_limit_bytes, self.budget_bytes)

    @property
    def healthy(self) -> bool:
        """Return whether the engine takes adapters now."""
        return self.health in (EngineHealth.READY, EngineHealth.STOCK)


@dataclass(frozen=True)
class AdapterDemand:
    """One adapter and what it needs. `size_bytes` and `rank` are None until they are known."""

    key: str  # "<namespace>/<name>"
    base_model: str = ""
    size_bytes: int | None = None  # arena bytes of its extent
    rank: int | None = None
    policy: PlacementPolicy = PlacementPolicy.ALL
    replicas: int = 1  # for policy Spread
    pinned: bool = False
    current: frozenset[str] = frozenset()  # pods that were chosen before (status.engines)

    def on(self, engine: EngineSnapshot) -> bool:
        """Return whether `engine` has the adapter or was chosen for it before."""
        return engine.pod_name in self.current or self.key in engine.loaded

    @classmethod
    def from_adapter(cls, adapter: LoRAAdapter) -> AdapterDemand:
        """Return the demand of a resource, from its spec and what its status remembers."""
        placement = adapter.spec.placement
        return cls(
            key=adapter.key,
            base_model=adapter.spec.base_model,
            size_bytes=adapter.status.size_bytes,
            rank=adapter.status.rank,
            policy=placement.policy,
            replicas=placement.replicas or 1,
            pinned=adapter.spec.pinned,
            current=frozenset(engine.pod_name for engine in adapter.status.engines),
        )
