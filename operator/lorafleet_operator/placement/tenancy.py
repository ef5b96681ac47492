"""Whose adapter it is, the most that its tenant gets, and what is kept for others on each engine.

A limit on one engine (arena bytes, slots) is looked at beside the engine's own room; the limit on
adapters counts those that have an engine. What a tenant is guaranteed and does not use is no room
for others, so that it is there the moment it is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lorafleet_operator.api.v1alpha1 import EngineHealth

from .load import Load

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .demands import AdapterDemand
    from .engines import EngineSnapshot

_NOTHING: Final = Load()


@dataclass(frozen=True)
class TenantRule:
    """The limits of one tenant: quota (None: no limit) and guarantee, sizes in bytes, per engine."""

    name: str
    adapters: int | None = None  # in the whole pool
    staged_bytes: int | None = None
    pinned_bytes: int | None = None
    slots: int | None = None
    guaranteed_slots: int = 0
    guaranteed_bytes: int = 0
    guaranteed_percent: int = 0  # of what placement may use of an engine's arena, if not 0
    loads_per_minute: int | None = None
    transfer_rate: int | None = None  # bytes a second that the operator sends

    @property
    def guarantees(self) -> bool:
        """Whether anything is kept for the tenant."""
        return bool(self.guaranteed_slots or self.guaranteed_bytes or self.guaranteed_percent)

    def share_of(self, engine: EngineSnapshot) -> int:
        """Return the arena bytes that are kept for the tenant on this engine."""
        if self.guaranteed_percent:
            return engine.capacity_bytes * self.guaranteed_percent // 100
        return self.guaranteed_bytes


@dataclass(frozen=True)
class Kept:
    """What an engine keeps for one tenant."""

    size_bytes: int = 0
    slots: int = 0


_NONE_KEPT: Final = Kept()


class Tenancy:
    """The tenants of a pool.

    rules: in the order of the pool's spec, which is the order of precedence where an engine is
    too small for all guarantees. rule_of: the rule of a namespace, None if no entry selects it.
    A namespace of no tenant of its own is one by itself, named "/<namespace>".
    """

    def __init__(
        self,
        rules: tuple[TenantRule, ...] = (),
        rule_of: Callable[[str], TenantRule | None] = lambda _: None,
    ) -> None:
        self.rules = rules
        self._rule_of = rule_of
        self._by_tenant: dict[str, TenantRule] = {}
        self._names: dict[str, str] = {}
        self._kept: dict[tuple[int, int, bool], dict[str, Kept]] = {}

    def tenant_of(self, namespace: str) -> str:
        """Return the tenant to whom the namespace belongs."""
        name = self._names.get(namespace)
        if name is None:
            rule = self._rule_of(namespace)
            name = rule.name if rule is not None and rule.name != "*" else f"/{namespace}"
            self._names[namespace] = name
            if rule is not None:
                self._by_tenant[name] = rule
        return name

    def told(self, namespace: str) -> bool:
        """Return whether anybody has been told whose the namespace is."""
        return namespace in self._names

    def rule(self, tenant: str) -> TenantRule | None:
        """Return the limits of a tenant that `tenant_of` has named, None if it has none."""
        return self._by_tenant.get(tenant)

    def kept(self, engine: EngineSnapshot) -> Mapping[str, Kept]:
        """Return what the engine keeps for each tenant that has a guarantee.

        Never more than there is: one slot stays shared, and an engine without the plugin can keep
        none.
        """
        stock = engine.health is EngineHealth.STOCK
        about = (engine.capacity_bytes, engine.max_loras, stock)
        found = self._kept.get(about)
        if found is None:
            room = engine.capacity_bytes
            slots = 0 if stock else max(engine.max_loras - 1, 0)
            found = {}
            for rule in self.rules:
                if rule.guarantees:
                    kept = Kept(min(rule.share_of(engine), room), min(rule.guaranteed_slots, slots))
                    room, slots = room - kept.size_bytes, slots - kept.slots
                    found[rule.name] = kept
            self._kept[about] = found
        return found


@dataclass(slots=True)
class Shares:
    """What each tenant has on one engine, and what the engine keeps for those that use less.

    kept_bytes, kept_slots: of all guarantees, what is not used.
    """

    kept: Mapping[str, Kept]
    loads: dict[str, Load] = field(default_factory=dict)
    kept_bytes: int = 0
    kept_slots: int = 0

    @classmethod
    def of(cls, kept: Mapping[str, Kept]) -> Shares:
        """Return the shares of an engine that carries nothing."""
        size = sum(each.size_bytes for each in kept.values())
        return cls(kept, {}, size, sum(each.slots for each in kept.values()))

    def copy(self) -> Shares:
        """Return shares of their own with the same counts."""
        loads = {tenant: load.copy() for tenant, load in self.loads.items()}
        return Shares(self.kept, loads, self.kept_bytes, self.kept_slots)

    def load(self, tenant: str) -> Load:
        """Return what the tenant has here."""
        return self.loads.get(tenant, _NOTHING)

    def unused(self, tenant: str) -> tuple[int, int]:
        """Return the bytes and slots of the tenant's guarantee that it does not use."""
        kept, load = self.kept.get(tenant, _NONE_KEPT), self.load(tenant)
        return max(kept.size_bytes - load.size_bytes, 0), max(kept.slots - load.pinned, 0)

    def add(self, adapter: AdapterDemand, times: int = 1) -> None:
        """Count one more adapter; one less with `times` -1."""
        before = self.unused(adapter.tenant)
        load = self.loads.setdefault(adapter.tenant, Load())
        load.add(adapter, times)
        if not load.adapters:
            del self.loads[adapter.tenant]  # namespaces come and go
        after = self.unused(adapter.tenant)
        self.kept_bytes += after[0] - before[0]
        self.kept_slots += after[1] - before[1]

    def kept_from(self, tenant: str) -> tuple[int, int]:
        """Return the bytes and slots that are kept for others than `tenant`."""
        size, slots = self.unused(tenant)
        return self.kept_bytes - size, self.kept_slots - slots

    def within(self, adapter: AdapterDemand) -> bool:
        """Return whether one more adapter would be within its tenant's guarantee.

        Then `guards` holds once it is here: else it and a more important one of another tenant
        would take each other's place for ever.
        """
        kept, load = self.kept.get(adapter.tenant, _NONE_KEPT), self.load(adapter.tenant)
        before, after = load.size_bytes, load.size_bytes + (adapter.size_bytes or 0)
        return load.adapters < kept.slots or (
            before < kept.size_bytes and 0 < after <= kept.size_bytes
        )

    def guards(self, adapter: AdapterDemand) -> bool:
        """Return whether an adapter that is here is within its tenant's guarantee."""
        kept, load = self.kept.get(adapter.tenant, _NONE_KEPT), self.load(adapter.tenant)
        left = load.size_bytes - (adapter.size_bytes or 0)
        return load.adapters <= kept.slots or left < kept.size_bytes
