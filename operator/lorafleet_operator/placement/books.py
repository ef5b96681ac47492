"""Books: who is where in the plan of one pool, and what that adds up to.

Every place is given and taken here, so that the sums are right whatever the planner does.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from .board import Board

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .board import Carrier
    from .demands import AdapterDemand
    from .entry import Entry
    from .tenancy import TenantRule


class Books:
    """The adapters of one pool and their places."""

    def __init__(self) -> None:
        self.board = Board()
        self.entries: dict[str, Entry] = {}
        self.was: dict[str, frozenset[str]] = {}
        """The engines of the adapters that got or lost one, as they were before."""
        self.losers: set[str] = set()
        """Of the adapters whose engines the last settling changed those that lost one which is there."""
        self.sheltered: set[str] = set()
        """Adapters whose place in a slot has changed."""
        self.placed: Counter[str] = Counter()
        """Adapters with an engine, by tenant."""
        self.weights: Counter[tuple[bool, int]] = Counter()
        """How many adapters and guests are of a weight; none has no entry."""

    def enrol(self, entry: Entry) -> None:
        """Take an adapter that has no place yet."""
        self.entries[entry.demand.key] = entry
        self._count(entry.demand.weight, 1)

    def strike(self, entry: Entry) -> None:
        """Forget an adapter, and its places."""
        self.release(entry)
        self._count(entry.demand.weight, -1)
        del self.entries[entry.demand.key]
        self.was.pop(entry.demand.key, None)

    def add(self, entry: Entry, carrier: Carrier, why: str, *, guest: bool = False) -> None:
        """Give the adapter a place on an engine; as a guest: beyond its replicas."""
        demand = entry.demand
        self.was.setdefault(demand.key, frozenset(entry.chosen))
        self.placed[demand.tenant] += not entry.chosen
        entry.chosen[carrier.engine.pod_name] = why
        if guest and demand.limit is not None:
            demand = demand.as_guest
            entry.guests |= {carrier.engine.pod_name}
            self._count(demand.weight, 1)
        before = carrier.sheltered(demand.tenant) if self._has_slots(demand) else None
        self.board.put(carrier, demand)
        if before is not None:
            self.sheltered |= before ^ carrier.sheltered(demand.tenant)

    def remove(self, entry: Entry, carrier: Carrier) -> str:
        """Take its place there from the adapter; return why it had it."""
        self.was.setdefault(entry.demand.key, frozenset(entry.chosen))
        why = entry.chosen.pop(carrier.engine.pod_name)
        if carrier.engine.pod_name in entry.guests:
            entry.guests -= {carrier.engine.pod_name}
            self._count(entry.demand.as_guest.weight, -1)
        self.placed[entry.demand.tenant] -= not entry.chosen
        tenant = entry.demand.tenant
        before = carrier.sheltered(tenant) if self._has_slots(entry.demand) else None
        self.board.take(carrier, entry.demand.key)
        if before is not None:
            self.sheltered |= before ^ carrier.sheltered(tenant)
        return why

    def release(self, entry: Entry) -> None:
        """Take all its places from the adapter."""
        for name in list(entry.chosen):
            self.remove(entry, self.board.carriers[name])

    def clear(self, carrier: Carrier) -> None:
        """Take their places on this engine from all."""
        for key in list(carrier.adapters):
            self.remove(self.entries[key], carrier)

    def promote(self, entry: Entry) -> None:
        """Let guests take the place of replicas that were lost.

        First where the adapter is loaded, on engines that are not cordoned, the emptiest.
        """
        carriers, loaded = self.board.carriers, self.board.loaded_on(entry.demand.key)

        def order(name: str) -> tuple[bool, bool, int, str]:
            engine = carriers[name].engine
            return engine.cordoned, name not in loaded, len(engine.loaded), name

        for name in sorted(entry.guests, key=order) if entry.short else ():
            self.add(entry, carriers[name], self.remove(entry, carriers[name]))
            if not entry.short:
                return

    def displace(
        self,
        entry: Entry,
        carrier: Carrier,
        going: Iterable[AdapterDemand],
        *,
        guest: bool = False,
    ) -> list[Entry]:
        """Give the adapter the place of those who go from an engine; return them."""
        losers = [self.entries[victim.key] for victim in going]
        for loser in losers:
            self.remove(loser, carrier)
            self.promote(loser)
            loser.demand = loser.demand.answered(carrier.engine.pod_name)
        names = ", ".join(loser.demand.key for loser in losers)
        lower = all(loser.demand.weight < entry.demand.weight for loser in losers)
        why = "lower priority" if lower else f"guarantee of {entry.demand.tenant}"
        why = "on demand" if guest else why
        self.add(entry, carrier, f"takes the place of {names} ({why})", guest=guest)
        return losers

    def reassess(self, entry: Entry, demand: AdapterDemand) -> None:
        """Take what an adapter wants now; it has no place any more."""
        self.release(entry)
        self._count(entry.demand.weight, -1)
        self._count(demand.weight, 1)
        entry.demand = demand

    def changes(self) -> set[str]:
        """Return the adapters whose engines, or places in slots, have changed since the last call."""
        moved = {
            key
            for key, was in self.was.items()
            if key in self.entries and was != self.entries[key].chosen.keys()
        }
        there = self.board.carriers.keys()
        self.losers = {
            key for key in moved if (self.was[key] - self.entries[key].chosen.keys()) & there
        }
        moved |= self.sheltered & self.entries.keys()
        self.was, self.sheltered = {}, set()
        return moved

    def sheltered_on(self, key: str) -> frozenset[str]:
        """Return the engines where its tenant's guarantee keeps the adapter in a slot; no guest."""
        entry = self.entries[key]
        if not self._has_slots(entry.demand):
            return frozenset()
        carriers, tenant = self.board.carriers, entry.demand.tenant
        replicas = entry.chosen.keys() - entry.guests  # guests are known again by their residency
        return frozenset(name for name in replicas if key in carriers[name].sheltered(tenant))

    def used_up(self, demand: AdapterDemand) -> TenantRule | None:
        """Return the rule of a tenant that has as many adapters as it may have, else None."""
        rule = self.board.tenancy.rule(demand.tenant)
        if rule is None or rule.adapters is None or self.placed[demand.tenant] < rule.adapters:
            return None
        return rule

    def _has_slots(self, demand: AdapterDemand) -> bool:
        rule = self.board.tenancy.rule(demand.tenant)
        return rule is not None and bool(rule.guaranteed_slots)

    def _count(self, weight: tuple[bool, int], change: int) -> None:
        self.weights[weight] += change
        if not self.weights[weight]:
            del self.weights[weight]
