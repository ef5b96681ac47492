"""From what was observed to the planner's terms and back."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from lorafleet_operator.api.conditions import Reason
from lorafleet_operator.api.v1alpha1 import EngineHealth
from lorafleet_operator.facts import Placed
from lorafleet_operator.placement import AdapterDemand, EngineSnapshot, plan

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lorafleet_operator.facts import Facts
    from lorafleet_operator.fleet import Fleet
    from lorafleet_operator.world import EngineView, KnownAdapter


def place(facts: Facts, fleet: Fleet) -> None:
    """Choose the adapter's engines, beside all other adapters of the pool."""
    reference = facts.adapter.spec.pool_ref.name
    if facts.pool is None:
        reason = f"EnginePool {facts.adapter.metadata.namespace}/{reference} does not exist"
        facts.placed = Placed(blocked=(Reason.POOL_NOT_FOUND, reason))
        return
    known = fleet.world.adapters.get(facts.pool.key) or ()
    owner = name_owner(facts, known)
    if owner is not None:
        text = f"served name {facts.adapter.served_name} is taken by {owner}"
        facts.placed = Placed(blocked=(Reason.NAME_TAKEN, text), lost_name=True)
        return
    grace = fleet.settings.engine_grace_seconds
    budget = facts.pool.spec.host_memory_budget_bytes
    result = plan(
        demands(facts, known),
        [snapshot(view, grace, budget) for view in facts.engines if view.member],
        explain=(facts.key,),
    )
    facts.placed = Placed(
        pods=result.assignments[facts.key],
        wanted=result.wanted[facts.key],
        blocked=result.blocked.get(facts.key),
        why=result.why[facts.key],
    )


def name_owner(facts: Facts, known: Iterable[KnownAdapter]) -> str | None:
    """Return the older adapter of the pool that owns the served name, None if it is free.

    Age decides, then the name, so that both sides come to the same answer without talking.
    """
    mine = (facts.created, facts.key)
    rivals = sorted(
        (other.created, other.key)
        for other in known
        if other.key != facts.key
        and not other.deleting
        and other.resource.served_name == facts.adapter.served_name
    )
    return rivals[0][1] if rivals and rivals[0] < mine else None


def demands(facts: Facts, known: Iterable[KnownAdapter]) -> list[AdapterDemand]:
    """Return what every adapter of the pool needs; this one's from the facts of the pass."""
    mine = AdapterDemand.from_adapter(facts.adapter)
    mine = replace(
        mine,
        size_bytes=mine.size_bytes if facts.size_bytes is None else facts.size_bytes,
        rank=mine.rank if facts.rank is None else facts.rank,
    )
    others = [
        AdapterDemand.from_adapter(other.resource)
        for other in known
        if other.key != facts.key and not other.deleting
    ]
    return [mine, *others]


def snapshot(view: EngineView, grace_seconds: float, budget: int | None) -> EngineSnapshot:
    """Return the engine in the planner's terms.

    An engine that was well and has been ill for less than the grace counts as well: a restart
    must not move adapters about.
    """
    inventory = view.inventory
    health = view.health
    if health in (EngineHealth.STARTING, EngineHealth.UNREACHABLE):
        health = EngineHealth.READY if view.ill_for < grace_seconds else health
    loaded = defaultdict[str, set[str]](set)
    for entry in inventory.loaded if inventory else ():
        loaded[entry.adapter].add(entry.digest)
    facts = EngineSnapshot(
        pod_name=view.pod.name,
        pod_uid=view.uid,
        instance=view.instance,
        node=view.pod.node,
        health=health,
        health_message=view.message,
        base_models=view.base_models,
        loaded={adapter: frozenset(digests) for adapter, digests in loaded.items()},
        budget_bytes=budget,
    )
    if inventory is None:
        return facts
    return replace(
        facts,
        max_lora_rank=inventory.max_lora_rank,
        max_loras=inventory.max_loras,
        max_cpu_loras=inventory.max_cpu_loras,
        arena_limit_bytes=inventory.arena.limit_bytes,
        arena_used_bytes=inventory.arena.used_bytes,
        arena_in_use_bytes=inventory.arena.in_use_bytes,
        arena_largest_free_bytes=inventory.arena.largest_free_bytes,
    )
