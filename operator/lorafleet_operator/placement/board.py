"""The fleet while it is planned: what each engine carries, found again by room and by content.

Engines of one kind and zone stand on one shelf, by how full they are. Filters are asked once for
a kind, not for each engine; the best engine is found by looking at the shelves' ends.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from .capacity import Shortage, quota_shortage, shortage
from .load import Load
from .tenancy import Shares, Tenancy

if TYPE_CHECKING:
    from collections.abc import Collection

    from .demands import AdapterDemand
    from .engines import EngineSnapshot

_NOBODY: Final[frozenset[str]] = frozenset()
Position = tuple[float, int, str]
"""Fullness, planned bytes for each tensor-parallel rank, pod name."""


@dataclass(slots=True, eq=False)
class Carrier:
    """One engine and what the plan has put on it."""

    engine: EngineSnapshot
    kind: Kind
    adapters: dict[str, AdapterDemand] = field(default_factory=dict)
    load: Load = field(default_factory=Load)
    position: Position = (0.0, 0, "")
    tenancy: Tenancy | None = None
    shares: Shares | None = None  # by tenant; None where the pool has no tenants

    def lacks(self, adapter: AdapterDemand, *, held: bool = False) -> Shortage | None:
        """Return what is missing here for one more adapter."""
        over = self.over_quota(adapter) if self.shares is not None else None
        return over or shortage(adapter, self.engine, self.load, self.shares, held=held)

    def over_quota(self, adapter: AdapterDemand) -> Shortage | None:
        """Return what the quota of the adapter's tenant lacks here."""
        if self.shares is None or self.tenancy is None:
            return None
        rule = self.tenancy.rule(adapter.tenant)
        if rule is None:
            return None
        return quota_shortage(adapter, rule, self.shares.load(adapter.tenant))

    def share_out(self, tenancy: Tenancy) -> None:
        """Reckon anew what each tenant has here."""
        self.tenancy = tenancy if tenancy.rules else None
        self.shares = Shares.of(tenancy.kept(self.engine)) if tenancy.rules else None
        if self.shares is not None:
            for adapter in self.adapters.values():
                self.shares.add(adapter)

    def sheltered(self, tenant: str) -> frozenset[str]:
        """Return the tenant's adapters that its guarantee keeps in slots here.

        The most important, the oldest first; those that are pinned by themselves come before.
        """
        slots = self.shares.kept[tenant].slots if self.shares and tenant in self.shares.kept else 0
        if not slots:
            return _NOBODY
        own = [adapter for adapter in self.adapters.values() if adapter.tenant == tenant]
        own.sort(key=lambda a: (not a.pinned, a.on_demand, -a.priority, a.created, a.key))
        return frozenset(adapter.key for adapter in own[:slots])

    @property
    def fullness(self) -> float:
        """Share of the places or of the arena that is planned for, the larger; above 1: shared."""
        return self.position[0]

    def reckon(self) -> Position:
        """Return the position that the load gives."""
        engine, load = self.engine, self.load
        places = load.adapters / max(engine.max_cpu_loras, engine.max_loras, 1)
        space = load.size_bytes / engine.capacity_bytes if engine.capacity_bytes else 0.0
        return (
            max(places, space),
            load.size_bytes // max(engine.tensor_parallel_size, 1),
            engine.pod_name,
        )


@dataclass(slots=True, eq=False)
class Shelf:
    """The engines of one kind in one zone, emptiest first."""

    positions: list[Position] = field(default_factory=list)
    nodes: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True, eq=False)
class Kind:
    """Engines that differ in nothing but place and load. `sample` is any of them."""

    sample: EngineSnapshot
    shelves: dict[str, Shelf] = field(default_factory=lambda: defaultdict(Shelf))  # by zone
    size: int = 0


class Board:
    """All engines of a pool with their planned load."""

    def __init__(self) -> None:
        self.carriers: dict[str, Carrier] = {}
        self.kinds: dict[tuple[object, ...], Kind] = {}
        self.tenancy = Tenancy()
        self._loaded_on: dict[str, set[str]] = {}
        self._staged_on: dict[str, set[str]] = {}

    def set_engine(self, engine: EngineSnapshot) -> Carrier:
        """Add the engine, or take its new facts; it keeps what it carries."""
        name = engine.pod_name
        old = self.carriers.get(name)
        if old is not None:
            self._leave(old)
            self._forget_content(old.engine)
        kind = self.kinds.get(engine.kind)
        if kind is None:
            kind = self.kinds[engine.kind] = Kind(engine)
        carrier = old or Carrier(engine, kind)
        old_kind = old and old.kind
        carrier.engine, carrier.kind = engine, kind
        self.carriers[name] = carrier
        self._enter(carrier)
        if self.tenancy.rules and (old is None or old_kind is not kind):
            carrier.share_out(self.tenancy)
        for key in engine.loaded:
            self._loaded_on.setdefault(key, set()).add(name)
        for digest in engine.staged:
            self._staged_on.setdefault(digest, set()).add(name)
        return carrier

    def drop_engine(self, name: str) -> None:
        """Forget an engine that is gone."""
        carrier = self.carriers.pop(name)
        self._leave(carrier)
        self._forget_content(carrier.engine)

    def put(self, carrier: Carrier, adapter: AdapterDemand) -> None:
        """Plan the adapter on this engine."""
        carrier.adapters[adapter.key] = adapter
        carrier.load.add(adapter)
        if carrier.shares is not None:
            carrier.shares.add(adapter)
        self._reposition(carrier)

    def take(self, carrier: Carrier, key: str) -> AdapterDemand:
        """Plan the adapter on this engine no longer; return what it had asked for."""
        adapter = carrier.adapters.pop(key)
        carrier.load.add(adapter, -1)
        if carrier.shares is not None:
            carrier.shares.add(adapter, -1)
        self._reposition(carrier)
        return adapter

    def loaded_on(self, key: str) -> Collection[str]:
        """Return the pods whose engine has the adapter loaded."""
        return self._loaded_on.get(key, ())

    def staged_on(self, digest: str) -> Collection[str]:
        """Return the pods whose engine holds the revision in its arena."""
        return self._staged_on.get(digest, ())

    def _reposition(self, carrier: Carrier) -> None:
        positions = carrier.kind.shelves[carrier.engine.zone].positions
        del positions[bisect_left(positions, carrier.position)]
        carrier.position = carrier.reckon()
        insort(positions, carrier.position)

    def _enter(self, carrier: Carrier) -> None:
        shelf = carrier.kind.shelves[carrier.engine.zone]
        carrier.position = carrier.reckon()
        insort(shelf.positions, carrier.position)
        shelf.nodes[carrier.engine.node] += 1
        carrier.kind.size += 1

    def _leave(self, carrier: Carrier) -> None:
        kind, zone, node = carrier.kind, carrier.engine.zone, carrier.engine.node
        shelf = kind.shelves[zone]
        del shelf.positions[bisect_left(shelf.positions, carrier.position)]
        shelf.nodes[node] -= 1
        if not shelf.nodes[node]:
            del shelf.nodes[node]
        if not shelf.positions:
            del kind.shelves[zone]
        kind.size -= 1
        if not kind.size:
            del self.kinds[carrier.engine.kind]

    def _forget_content(self, engine: EngineSnapshot) -> None:
        for index, names in ((self._loaded_on, engine.loaded), (self._staged_on, engine.staged)):
            for name in names:
                index[name].discard(engine.pod_name)
                if not index[name]:
                    del index[name]
