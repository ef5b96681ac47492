"""One adapter's place in the plan of its pool: from what a pass has found to its engines."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lorafleet_operator.api.conditions import Reason
from lorafleet_operator.facts import Placed
from lorafleet_operator.placement import AdapterDemand, blocked, displaced_from, wanted

if TYPE_CHECKING:
    from lorafleet_operator.facts import Facts
    from lorafleet_operator.fleet import Fleet


def place(facts: Facts, fleet: Fleet) -> None:
    """Choose the adapter's engines, beside all other adapters of the pool.

    Others whose engines that changes are woken. From here on the pass looks at no engine that
    neither has the adapter nor should have it, however large the pool is.
    """
    metadata, pool = facts.adapter.metadata, facts.pool
    if pool is None:
        reason = (
            f"EnginePool {metadata.namespace}/{facts.adapter.spec.pool_ref.name} does not exist"
        )
        facts.placed = Placed(blocked=(Reason.POOL_NOT_FOUND, reason))
        return
    planner = fleet.planner(pool.key)
    planner.look_at_engines(pool, fleet.world, fleet.links, fleet.settings.engine_grace_seconds)
    planner.look_at_adapters(fleet.world.adapters.get(pool.key) or ())
    owner = planner.claim(facts.key, facts.adapter.served_name, facts.created)
    needs = demand(facts)
    if owner is None:
        planner.plan.set_adapter(needs)
    else:
        planner.plan.drop_adapter(facts.key)
    for key in planner.plan.settle() - {facts.key}:
        fleet.wakeups.wake(key)
    status = facts.adapter.status
    concerned = planner.plan.concerned(needs, (status.digest, *status.history))
    facts.engines = [
        view for view in facts.engines if not view.member or view.pod.name in concerned
    ]
    if owner is not None:
        text = f"served name {facts.adapter.served_name} is taken by {owner}"
        facts.placed = Placed(blocked=(Reason.NAME_TAKEN, text), lost_name=True)
        return
    entry = planner.plan.entries[facts.key]
    facts.placed = Placed(
        pods=tuple(sorted(entry.chosen)),
        wanted=wanted(planner.plan, entry),
        blocked=blocked(planner.plan, entry),
        displaced=displaced_from(planner.plan, entry),
    )


def demand(facts: Facts) -> AdapterDemand:
    """Return what the pass's adapter needs: what the pass has found out counts, then the status.

    An engine that refused the content for good gets it only if no other can take it, unless it
    has the adapter: a refused update must not end what is served.
    """
    known = AdapterDemand.from_adapter(facts.adapter)
    return replace(
        known,
        size_bytes=known.size_bytes if facts.size_bytes is None else facts.size_bytes,
        rank=known.rank if facts.rank is None else facts.rank,
        refused={
            view.pod.name: str(facts.refusals[view.uid])
            for view in (facts.engines if facts.refusals else ())
            if view.uid in facts.refusals
        },
    )
