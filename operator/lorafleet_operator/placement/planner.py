"""Planner: the plan of one pool, kept up to date as facts change.

Change facts with `set_engine`, `drop_engine`, `set_adapter` and `drop_adapter`, then `settle`.
What was chosen stays while it is legal; only then what is missing is chosen. Planning from
nothing is the same code with all facts new, and a plan that was carried out is the plan of the
facts that it leads to.
"""

from __future__ import annotations

from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from .books import Books
from .choose import best, open_kinds, reason_to_choose
from .demands import Policy
from .entry import Entry
from .filters import filter_refusal
from .preempt import cheapest, victims
from .turns import in_turn

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .board import Kind
    from .demands import AdapterDemand
    from .engines import EngineSnapshot
    from .tenancy import Tenancy


class Planner:
    """Which engines of one pool get which adapters."""

    def __init__(self) -> None:
        self.books = Books()
        self.board, self.entries = self.books.board, self.books.entries
        self._dirty: set[str] = set()  # adapters whose needs have changed
        self._fresh: set[str] = set()  # engines that came, or whose facts have changed
        self._freed = False  # something may have room now that had none
        self._waiting: set[str] = set()  # adapters that found no room

    # Facts.

    def set_engine(self, engine: EngineSnapshot) -> None:
        """Take the facts of an engine, new or known."""
        known = self.board.carriers.get(engine.pod_name)
        old = known.engine if known else None
        if old == engine:
            return
        self.board.set_engine(engine)
        for key in set(engine.loaded) ^ set(old.loaded if old else ()):
            self._seen_or_lost(key, engine.pod_name)
        if old is None or old.kind != engine.kind:
            self._fresh.add(engine.pod_name)
        elif engine.largest_piece_bytes > old.largest_piece_bytes:
            self._freed = True

    def drop_engine(self, pod_name: str) -> None:
        """Forget an engine that left the pool."""
        carrier = self.board.carriers.get(pod_name)
        if carrier is not None:
            self.books.clear(carrier)
            self.board.drop_engine(pod_name)
            self._fresh.discard(pod_name)

    def set_tenancy(self, tenancy: Tenancy) -> None:
        """Take the pool's tenants: everything is looked at again."""
        self.board.tenancy = tenancy
        entries = list(self.entries.values())
        for entry in entries:
            self.books.release(entry)
        for entry in entries:
            entry.demand = _assigned(entry.demand, tenancy)
            self.books.sheltered.add(entry.demand.key)
        for carrier in self.board.carriers.values():
            carrier.share_out(tenancy)
        self.books.placed.clear()
        self._dirty |= self.entries.keys()
        self._fresh |= self.board.carriers.keys()

    def set_adapter(self, demand: AdapterDemand) -> None:
        """Take what an adapter wants, new or known."""
        if self.board.tenancy.rules:
            demand = _assigned(demand, self.board.tenancy)
        entry = self.entries.get(demand.key)
        if entry is None:
            self.books.enrol(Entry(demand))
            self._dirty.add(demand.key)
        elif entry.demand.same_needs(demand):
            entry.demand = demand
        else:
            self._freed |= entry.demand.eases(demand)
            self.books.reassess(entry, demand)
            self._dirty.add(demand.key)

    def drop_adapter(self, key: str) -> None:
        """Forget an adapter that is gone, or going."""
        entry = self.entries.get(key)
        if entry is not None:
            self._freed |= bool(entry.chosen)
            self.books.strike(entry)
            for names in (self._dirty, self._waiting):
                names.discard(key)

    # The plan.

    def settle(self) -> set[str]:
        """Choose what the changed facts ask for; return the adapters whose engines changed."""
        for name in self._fresh:
            self.books.clear(self.board.carriers[name])
        seekers = self._dirty | self.books.was.keys()
        ranks = in_turn((self.entries[key].demand for key in seekers), self.books.placed)
        for key in sorted(seekers, key=ranks.__getitem__):
            self._keep(self.entries[key])
        lost = any(was - self.entries[key].chosen.keys() for key, was in self.books.was.items())
        if self._waiting and (self._freed or self._fresh or lost):
            seekers |= self._waiting
        if self._fresh:
            seekers |= {k for k, e in self.entries.items() if e.demand.policy is Policy.ALL}
        while seekers:
            seekers = set(self._waiting) if self._fill(seekers) else set()
        self._dirty, self._fresh, self._freed = set(), set(), False
        return self.books.changes()

    def interested(self, pod_name: str) -> set[str]:
        """Return the adapters that any news of this engine may concern.

        Those that it has or was chosen for, and those that are for every engine, have too few, or
        have not been read yet because no engine has said what it takes.
        """
        carrier = self.board.carriers.get(pod_name)
        there = {*carrier.adapters, *carrier.engine.loaded} if carrier else set()
        open_ = {
            key
            for key, entry in self.entries.items()
            if entry.demand.policy is Policy.ALL or entry.demand.size_bytes is None
        }
        return (there & self.entries.keys()) | open_ | self._waiting

    def concerned(self, demand: AdapterDemand, digests: Iterable[str]) -> set[str]:
        """Return the holders, and for each revision one engine that has it staged, if any does."""
        staged = (next(iter(self.board.staged_on(digest)), None) for digest in digests)
        return {*filter(None, staged), *self.holders(demand)}

    def holders(self, demand: AdapterDemand) -> set[str]:
        """Return the engines that have the adapter, or were chosen for it, or are now."""
        entry = self.entries.get(demand.key)
        chosen = entry.chosen if entry else ()
        return {*demand.current, *self.board.loaded_on(demand.key), *chosen}

    def _seen_or_lost(self, key: str, pod_name: str) -> None:
        """Look again at an adapter that was found on an engine, or went from it, unasked."""
        entry = self.entries.get(key)
        if entry is None:
            return
        if entry.demand.on_demand:
            self.books.release(entry)
            entry.demand = entry.demand.answered(pod_name)
            self._dirty.add(key)
        elif entry.seeks and pod_name not in entry.chosen:
            self._dirty.add(key)

    def _keep(self, entry: Entry) -> None:
        """Leave the adapter where it was or is, at most on as many engines as it wants.

        Of too many, those go that a request brought it to, that were not chosen, that are
        cordoned, that have yet to load it, and the fullest. The first of them stay as guests.
        """
        demand, carriers = entry.demand, self.board.carriers
        before = self.books.was.get(demand.key, frozenset())
        loaded = self.board.loaded_on(demand.key)
        names = set(before)
        if demand.on_demand:
            names = set(loaded) - demand.idle  # it is where it has been asked for, nowhere else
        elif demand.limit is not None or demand.key in self._dirty:
            names.update(demand.current, loaded)

        def order(name: str) -> tuple[bool, bool, bool, bool, int, str]:
            engine = carriers[name].engine
            unloaded = name not in loaded
            guest = name in demand.visits or name in entry.guests
            return (guest, name not in before, engine.cordoned, unloaded, len(engine.loaded), name)

        self.books.promote(entry)
        for name in sorted(carriers.keys() & names - entry.chosen.keys(), key=order):
            guest = demand.limit is not None and not entry.short
            if guest and name not in demand.visits:
                continue
            if not entry.chosen and self.books.used_up(demand):
                return
            carrier, there = carriers[name], name in loaded
            if name in demand.refused and not there and demand.limit is not None:
                continue  # another engine may take it
            legal = filter_refusal(demand, carrier.engine, held=True) is None
            if legal and carrier.lacks(demand, held=True) is None:
                why = "has it already" if there else "was chosen before"
                self.books.add(entry, carrier, why, guest=guest)

    def _fill(self, keys: Iterable[str]) -> bool:
        """Choose engines for what these adapters miss, and for whom that displaces.

        Return whether anybody was displaced: what that freed may be more than what took it.
        """
        hopeless: set[tuple[object, ...]] = set()
        ranks = in_turn((self.entries[key].demand for key in keys), self.books.placed)
        queue = [(rank, key) for key, rank in ranks.items()]
        heapify(queue)
        anybody = False
        while queue:
            rank, key = heappop(queue)
            entry = self.entries[key]
            if not entry.seeks:
                self._waiting.discard(key)
                continue
            shape = (*rank[:2], *entry.demand.shape)
            if shape in hopeless and not entry.chosen:
                self._waiting.add(key)
                continue
            displaced = self._choose(entry)
            if not entry.chosen:
                hopeless.add(shape)
            if displaced:
                anybody = True
                hopeless.clear()
                again = in_turn((other.demand for other in displaced), self.books.placed)
                for victim, place in again.items():
                    self._waiting.add(victim)
                    heappush(queue, (place, victim))
        return anybody

    def _choose(self, entry: Entry) -> list[Entry]:
        """Give the adapter the engines that it misses; return who lost a place for it."""
        demand = entry.demand
        if not entry.chosen and self.books.used_up(demand):
            self._waiting.add(demand.key)
            return []
        kinds = open_kinds(self.board, demand)
        rule = self.board.tenancy.rule(demand.tenant)
        claims = rule is not None and rule.guarantees
        urgent = claims or any(weight < demand.weight for weight in self.books.weights)
        if demand.policy is Policy.ALL:
            return self._choose_all(entry, kinds, urgent=urgent)
        displaced: list[Entry] = []
        while entry.short:
            carrier = best(self.board, demand, kinds, entry.chosen)
            if carrier is not None:
                self.books.add(entry, carrier, reason_to_choose(demand, carrier))
                continue
            cost = cheapest(self.board, demand, kinds, entry.chosen) if urgent else None
            if cost is None:
                break
            displaced += self.books.displace(entry, *cost)
        displaced += self._choose_requested(entry, kinds)
        (self._waiting.add if entry.seeks else self._waiting.discard)(demand.key)
        return displaced

    def _choose_requested(self, entry: Entry, kinds: set[Kind]) -> list[Entry]:
        """Give the adapter the engines that requests wait for it on, beside its replicas."""
        guest, carriers = entry.demand.as_guest, self.board.carriers
        displaced: list[Entry] = []
        for name in sorted(carriers.keys() & entry.asked):
            carrier = carriers[name]
            if carrier.kind not in kinds:
                continue
            if carrier.lacks(guest) is None:
                self.books.add(
                    entry, carrier, "a request asked for it there", guest=not entry.short
                )
            elif going := victims(carrier, guest):
                displaced += self.books.displace(entry, carrier, going, guest=not entry.short)
        return displaced

    def _choose_all(self, entry: Entry, kinds: set[Kind], *, urgent: bool) -> list[Entry]:
        demand, carriers = entry.demand, self.board.carriers
        whole = demand.key in self._dirty or demand.key in self._waiting
        displaced: list[Entry] = []
        waits = False
        for name in sorted(carriers if whole else self._fresh):
            carrier = carriers[name]
            if name in entry.chosen or carrier.kind not in kinds:
                continue
            if carrier.lacks(demand) is None:
                self.books.add(entry, carrier, "policy All takes every engine")
            elif urgent and (going := victims(carrier, demand)):
                displaced += self.books.displace(entry, carrier, going)
            else:
                waits = True
        (self._waiting.add if waits else self._waiting.discard)(demand.key)
        return displaced


def _assigned(demand: AdapterDemand, tenancy: Tenancy) -> AdapterDemand:
    tenant = tenancy.tenant_of(demand.namespace) if tenancy.rules else ""
    return demand if demand.assigned == tenant else replace(demand, assigned=tenant)
