"""The plan of one pool between the passes of its adapters: facts come in as they change.

A pass tells its own adapter's needs and gets its engines; what everybody else needs and has is
known already. The plan itself is pure (placement/); here is only what has to be looked at again.
"""

from __future__ import annotations

from dataclasses import replace
from sys import intern
from typing import TYPE_CHECKING

from lorafleet_operator.api.v1alpha1 import EngineHealth
from lorafleet_operator.placement import AdapterDemand, EngineSnapshot, Planner, unmet
from lorafleet_operator.tenants import tenancy_of
from lorafleet_operator.world import engine_view

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from lorafleet.profile import EngineProfile

    from lorafleet_operator.api.v1alpha1 import EnginePool, EnginePoolSpec, LoRAAdapter
    from lorafleet_operator.cluster.reads import EnginePod
    from lorafleet_operator.transfer.links import Links
    from lorafleet_operator.wake import Wakeups
    from lorafleet_operator.world import EngineView, KnownAdapter, World


Rank = tuple[bool, str]
"""Of a claim to a served name, the least owns it: whether the adapter does not hold it yet, and when
it was created."""


class PoolPlanner:
    """One pool's plan, its members, and who owns which served name."""

    def __init__(self) -> None:
        self.plan = Planner()
        self.members: dict[str, EnginePod] = {}
        """The pool's pods by name, as of the last look."""
        self.stale = True
        """Whether pods or the pool have changed since then."""
        self.recycling = ""
        """The engine of which adapters were last told that it takes no traffic."""
        self.tenants_stale = True
        """Whether namespaces have changed, by whose labels tenants are told, since then."""
        self.profiles: dict[str, EngineProfile] = {}
        """What each of them takes, by its name, as far as it has said so."""
        self._samples: dict[int, str] | None = None  # one member of each profile, once asked for
        self._spec: EnginePoolSpec | None = None
        self._changed: set[str] = set()
        self._in_grace: set[str] = set()
        self._claims: dict[str, tuple[str, Rank]] = {}  # adapter -> served name
        self._names: dict[str, dict[str, Rank]] = {}  # served name -> adapter
        self._kept: dict[str, frozenset[str]] = {}  # adapter -> names of before

    # Engines.

    def engine_changed(self, pod_name: str) -> None:
        """Note that an engine has something new to say."""
        self._changed.add(pod_name)

    def look_at_engines(
        self, pool: EnginePool, world: World, links: Links, grace_seconds: float
    ) -> None:
        """Bring the engines' facts up to date: all of them after a change of pods or the pool."""
        if self.tenants_stale or self._spec is None or pool.spec.tenants != self._spec.tenants:
            self._look_at_tenants(pool, world)
        if self.stale or pool.spec != self._spec:
            members = {pod.name: pod for pod in world.members(pool)}
            for name in self.members.keys() - members.keys():
                self.plan.drop_engine(name)
                self._in_grace.discard(name)
                self.profiles.pop(name, None)
                self._samples = None
            old = self.members if pool.spec == self._spec else {}
            self._changed |= {name for name, pod in members.items() if pod != old.get(name)}
            self.members, self._spec, self.stale = members, pool.spec, False
        for name in self._in_grace - self._changed:
            link = links.get(self.members[name].uid)
            if link is None or link.ill_for() >= grace_seconds:
                self._changed.add(name)
        for name in self._changed & self.members.keys():
            view = engine_view(self.members[name], links)
            seen = snapshot(view, grace_seconds, pool.spec)
            self.plan.set_engine(seen)
            if view.profile is not None and view.profile is not self.profiles.get(name):
                self.profiles[name] = view.profile
                self._samples = None
            well = view.takes_orders or not seen.healthy
            (self._in_grace.discard if well else self._in_grace.add)(name)
        self._changed = set()

    def _look_at_tenants(self, pool: EnginePool, world: World) -> None:
        """Plan with the tenants as they are; without any before and now, nothing is to do."""
        self.tenants_stale = False
        if pool.spec.tenants or self.plan.board.tenancy.rules:
            self.plan.set_tenancy(tenancy_of(pool.spec, world.namespaces.get))

    def worth_a_look(self, adapter: LoRAAdapter, refusing: set[str]) -> list[EnginePod]:
        """Return the members that a pass over the adapter has to see before it is placed, by name.

        Those that have it, had it or should have it, those of the pods that are `refusing` (UIDs),
        and one of each profile, to tell what the others of that profile say of its content.
        """
        if self._samples is None:
            self._samples = {id(profile): name for name, profile in self.profiles.items()}
        names = {*self.concerned(adapter), *self._samples.values()} & self.members.keys()
        if refusing:
            names |= {name for name, pod in self.members.items() if pod.uid in refusing}
        return [self.members[name] for name in sorted(names)]

    def concerned(self, adapter: LoRAAdapter) -> set[str]:
        """Return the engines that have the adapter, one of its revisions, or should have it."""
        status = adapter.status
        revisions = (status.digest, *status.history)
        return self.plan.concerned(AdapterDemand.from_adapter(adapter), revisions)

    def of_profile(self, profile: EngineProfile) -> list[str]:
        """Return the members that take the same."""
        return [name for name, each in self.profiles.items() if each is profile]

    def interested(self, pod_name: str) -> set[str] | None:
        """Return the adapters that news of this engine may concern, None if nobody can tell yet."""
        return self.plan.interested(pod_name) if self.members else None

    # Adapters.

    def settle(self, wakeups: Wakeups, *, but: str = "") -> None:
        """Bring the plan up to date with its facts; wake the adapters whose engines that changes.

        A pass that runs over one that loses an engine does not go on: it would load there what has
        no place any more. but: the one whose pass it is, which knows already.
        """
        for key in self.plan.settle() - {but}:
            (wakeups.interrupt if key in self.plan.books.losers else wakeups.wake)(key)

    def look_at_adapters(
        self,
        known: Collection[KnownAdapter],
        barred: Callable[[KnownAdapter], bool] = lambda _: False,
    ) -> None:
        """Take adapters that are new here, forget those that are gone.

        What a known one needs, its own pass tells, which knows more than its status does.
        barred: whether an adapter may not be here at all.
        """
        if len(known) == len(self._claims):
            return
        here = {each.key: each for each in known}
        for key in self._claims.keys() - here.keys():
            self.forget(key)
        for key in here.keys() - self._claims.keys():
            self.note(here[key], barred=barred(here[key]))

    def note(self, known: KnownAdapter, *, barred: bool = False) -> None:
        """Take an adapter as the API server has it, if it is new here or on its way out."""
        if known.deleting or (barred and known.key not in self._claims):
            self.bar(known.key, known.created)
        elif known.key not in self._claims:
            self.claim(known.key, known.served_name, known.created, holds=known.holds_name)
            self.plan.set_adapter(known.demand)

    def unmet(self, key: str, pods: Collection[str]) -> dict[str, str]:
        """Return why the adapter is not on those of these engines where it is not, by pod name."""
        entry = self.plan.entries.get(key)
        return unmet(self.plan, entry, pods) if entry is not None and pods else {}

    def bar(self, key: str, created: str) -> None:
        """Let an adapter that exists have no place, and own nothing."""
        self.forget(key)
        self._claims[key] = ("", (True, created))

    def forget(self, key: str) -> None:
        """Forget an adapter that is gone."""
        self.plan.drop_adapter(key)
        self._unclaim(key)
        self._kept.pop(key, None)

    def claim(
        self,
        key: str,
        served_name: str,
        created: str,
        rivals: Iterable[PoolPlanner] = (),
        *,
        holds: bool = False,
        but: Collection[str] = (),
    ) -> str | None:
        """Claim a served name; return the other adapter that owns it, None if it is this one's.

        Who `holds` the name keeps it as long as it claims it. Among those that do not, or all do, age
        decides, then the key, so that both sides come to the same answer without talking.
        rivals: the plans of pools that share engines with this one. but: whose claims do not count.
        """
        before, (waits, _) = self._claims.get(key, ("", (True, "")))
        rank = (not holds and (waits or before != served_name), created)
        if self._claims.get(key) != (served_name, rank):
            self._unclaim(key)
            self._claims[key] = (served_name, rank)
        self._names.setdefault(served_name, {})[key] = rank
        owner = self.owner(served_name, rivals, but=but)
        return None if owner == key else owner

    def hold(self, key: str) -> None:
        """Let the adapter keep the name that it claims: it is its own, and its status will say so."""
        served_name, (_, created) = self._claims[key]
        rank = (False, created)
        self._claims[key] = (served_name, rank)
        self._names[served_name][key] = rank

    def keep(self, key: str, names: frozenset[str]) -> None:
        """Note the names of before that an adapter goes on under until somebody claims them."""
        self._kept.pop(key, None)
        if names:
            self._kept[key] = names

    def claimed_by(self, key: str) -> str:
        """Return the served name that an adapter claims, "" while it claims none."""
        return self._claims[key][0] if key in self._claims else ""

    def _ranked(self, served_name: str) -> list[tuple[Rank, str]]:
        return [(rank, key) for key, rank in self._names.get(served_name, {}).items()]

    def _unclaim(self, key: str) -> None:
        served_name, _ = self._claims.pop(key, ("", None))
        claims = self._names.get(served_name, {})
        claims.pop(key, None)
        if not claims:
            self._names.pop(served_name, None)

    def owner(
        self, served_name: str, rivals: Iterable[PoolPlanner] = (), *, but: Collection[str] = ()
    ) -> str | None:
        """Return the adapter that owns a served name, None if none claims it."""
        claims = [claim for each in (self, *rivals) for claim in each._ranked(served_name)]
        return min((claim for claim in claims if claim[1] not in but), default=(None, None))[1]

    def claimants(self, served_name: str) -> list[str]:
        """Return the adapters that claim a served name, or go on under it."""
        kept = [key for key, names in self._kept.items() if served_name in names]
        return [*self._names.get(served_name, ()), *kept]


def snapshot(view: EngineView, grace_seconds: float, spec: EnginePoolSpec) -> EngineSnapshot:
    """Return the engine in the planner's terms.

    An engine that was well and has been ill for less than the grace counts as well: a restart
    must not move adapters about.
    """
    inventory, health = view.inventory, view.health
    if health in (EngineHealth.STARTING, EngineHealth.UNREACHABLE):
        health = EngineHealth.READY if view.ill_for < grace_seconds else health
    facts = EngineSnapshot(
        pod_name=view.pod.name,
        node=view.pod.node,
        zone=view.zone,
        health=health,
        health_message=view.message,
        base_models=view.base_models,
        tensor_parallel_size=view.profile.tensor_parallel_size if view.profile else 1,
        budget_bytes=spec.host_memory_budget_bytes,
        max_adapters=spec.max_adapters_per_engine,
        cordoned=view.cordoned,
        leaving=view.leaving,
    )
    if inventory is None:
        return facts
    return replace(
        facts,
        max_lora_rank=inventory.max_lora_rank,
        max_loras=inventory.max_loras,
        max_cpu_loras=inventory.max_cpu_loras,
        # Interned: each inventory brings its own copies of names that are known already.
        loaded=frozenset(intern(entry.adapter) for entry in inventory.loaded if entry.adapter),
        idle_seconds={
            intern(e.adapter): e.idle_seconds for e in inventory.loaded if not e.in_flight
        },
        staged=frozenset(intern(entry.digest) for entry in inventory.staged),
        arena_limit_bytes=inventory.arena.limit_bytes,
        arena_used_bytes=inventory.arena.used_bytes,
        arena_in_use_bytes=inventory.arena.in_use_bytes,
        arena_largest_free_bytes=inventory.arena.largest_free_bytes,
    )
