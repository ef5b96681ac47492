"""What people want: each adapter in the planner's terms."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from sys import intern
from typing import TYPE_CHECKING, Final

from lorafleet_operator.api import v1alpha1 as spec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lorafleet_operator.api.v1alpha1 import LoRAAdapter


class Policy(StrEnum):
    """How many engines get an adapter, and which are preferred."""

    ALL = "All"  # every engine that can take it
    SPREAD = "Spread"  # replicas, apart from each other, on the engines with most room
    BIN_PACK = "BinPack"  # replicas, on the fullest engines that still have room
    ON_DEMAND = "OnDemand"  # none: it stays where a request has brought it


class Residency(StrEnum):
    """What an engine has to keep ready for an adapter."""

    GPU = "gpu"  # pinned: a slot and a place in host memory of its own
    HOST = "host"  # a place in host memory of its own
    SHARED = "shared"  # slots and places are shared, least recently used out first


_NOBODY: Final[frozenset[str]] = frozenset()
_KEPT = {spec.Residency.GPU: Residency.GPU, spec.Residency.HOST: Residency.HOST}


@dataclass(frozen=True)
class AdapterDemand:
    """One adapter and what it needs. `size_bytes` and `rank` are None until they are known."""

    key: str  # "<namespace>/<name>"
    base_model: str = ""
    size_bytes: int | None = None  # arena bytes of its extent
    rank: int | None = None
    policy: Policy = Policy.ALL
    replicas: int = 1  # for Spread and BinPack
    residency: Residency = Residency.SHARED
    priority: int = 0  # more is more important
    created: str = ""  # as the API server wrote it: sorts by age
    assigned: str = ""  # its tenant, where the pool has tenants: the planner tells
    digest: str = ""  # of the content that was last served: engines may have it staged
    current: frozenset[str] = frozenset()  # pods that were chosen before (status.engines)
    refused: Mapping[str, str] = field(default_factory=dict)
    """Pod -> what its engine said when it refused this content for good."""
    requested: frozenset[str] = frozenset()  # pods where requests wait for it
    visits: frozenset[str] = frozenset()  # pods where requests brought it beside its replicas
    idle: frozenset[str] = frozenset()  # pods where none has asked for it for long, of OnDemand

    @property
    def namespace(self) -> str:
        """The adapter's namespace."""
        return self.key.partition("/")[0]

    held_back: bool = False
    """Whether nothing of it will be loaded now: its source cannot be read, its content was refused,
    or it is paused. Changes no plan; no engine is waited for because of it."""

    @property
    def tenant(self) -> str:
        """To whom it counts: a tenant of the pool, else its namespace."""
        return self.assigned or self.namespace

    @property
    def pinned(self) -> bool:
        """Whether it keeps a GPU slot of its own."""
        return self.residency is Residency.GPU

    @property
    def reserved(self) -> bool:
        """Whether it keeps a place in the engine's host memory of its own."""
        return self.residency is not Residency.SHARED

    @property
    def on_demand(self) -> bool:
        """Whether it is only where requests ask for it."""
        return self.policy is Policy.ON_DEMAND

    def answered(self, pod_name: str) -> AdapterDemand:
        """Return it without the request on that engine: it came, or gave its place to another."""
        if pod_name not in self.requested:
            return self
        return replace(self, requested=self.requested - {pod_name})

    @cached_property
    def as_guest(self) -> AdapterDemand:
        """What it is on an engine beyond its replicas: there on demand, whatever its policy."""
        return replace(self, policy=Policy.ON_DEMAND)

    @property
    def weight(self) -> tuple[bool, int]:
        """How important it is: what is there for a request gives way to all that is not."""
        return (not self.on_demand, self.priority)

    @property
    def limit(self) -> int | None:
        """The most engines that it gets, None for as many as there are."""
        return self.replicas if self.policy in (Policy.SPREAD, Policy.BIN_PACK) else None

    @cached_property
    def shape(self) -> tuple[object, ...]:
        """What it asks of an engine: where one has room, another of its shape has."""
        return (
            self.base_model,
            self.size_bytes,
            self.rank,
            self.residency,
            self.assigned,
            frozenset(self.refused) if self.refused else _NOBODY,  # an empty one takes 200 bytes
            self.requested,
        )

    def same_needs(self, other: AdapterDemand) -> bool:
        """Return whether `other` asks for the same: what was chosen for one is right for both."""
        return self._needs == other._needs

    def eases(self, new: AdapterDemand) -> bool:
        """Return whether others may have more room, or take its place, when it becomes `new`."""
        smaller = (new.size_bytes or 0) < (self.size_bytes or 0)
        return smaller or new.weight < self.weight or self.reserved

    @property
    def _needs(self) -> tuple[object, ...]:
        return (
            *self.shape,
            self.visits,
            self.idle,
            self.policy,
            self.limit,
            self.priority,
            self.created,
        )

    @classmethod
    def from_adapter(cls, adapter: LoRAAdapter, created: str = "") -> AdapterDemand:
        """Return the demand of a resource, from its spec and what its status remembers.

        Names are interned: thousands of demands are kept, and engines' inventories have them too.
        """
        placement, status = adapter.spec.placement, adapter.status
        return cls(
            key=intern(adapter.key),
            base_model=intern(adapter.spec.base_model),
            size_bytes=status.size_bytes,
            rank=status.rank,
            policy=Policy(placement.policy),
            replicas=placement.replicas or 1,
            residency=_KEPT.get(adapter.spec.wanted_residency, Residency.SHARED),
            priority=adapter.spec.priority,
            created=intern(created),
            digest=intern(status.digest),
            current=frozenset(intern(engine.pod_name) for engine in status.engines),
        )
