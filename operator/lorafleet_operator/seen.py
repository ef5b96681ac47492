"""What a pass has seen of what engines and the plan say.

Each of its orders is told of by the engine that got it, and of thousands of adapters that come together
the pass of the first plans for all. Without this each would have a second pass, over its own doing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lorafleet_operator import rollout
from lorafleet_operator.affected import adapters_affected
from lorafleet_operator.api.conditions import ConditionType
from lorafleet_operator.api.v1alpha1 import PlacementPolicy
from lorafleet_operator.wake import THE_PLAN

if TYPE_CHECKING:
    from lorafleet_operator.facts import Facts
    from lorafleet_operator.fleet import Fleet
    from lorafleet_operator.report import Report
    from lorafleet_operator.world import EngineView


def seen(facts: Facts, said: Report, fleet: Fleet) -> frozenset[str]:
    """Return who says of the adapter what the pass has ended with, and no more.

    Nobody if the pass has left anything to the next one.
    """
    if not _is_over(facts, said):
        return frozenset()
    found = {view.uid for view in facts.engines if _says_the_same(view, facts.key, fleet)}
    return frozenset(found | ({THE_PLAN} if _is_planned(facts, fleet) else set()))


def _is_planned(facts: Facts, fleet: Fleet) -> bool:
    """Return whether the adapter's engines are still those that the pass was told."""
    plan, placed = fleet.planner(facts.adapter.pool_key).plan, facts.placed
    entry = plan.entries.get(facts.key)
    return (
        entry is not None
        and placed is not None
        and placed.pods == tuple(sorted(entry.chosen))
        and placed.sheltered == plan.books.sheltered_on(facts.key)
    )


def _says_the_same(view: EngineView, adapter: str, fleet: Fleet) -> bool:
    link = fleet.links.get(view.uid)
    if link is None or view.problem or link.problem:
        return False
    if link.inventory is view.inventory:
        return True
    affected = adapters_affected(view.inventory, link.inventory, in_contact=link.in_contact)
    return affected is not None and adapter not in affected


def _is_over(facts: Facts, said: Report) -> bool:
    """Return whether the adapter is served as it is wanted, for the first time or as before.

    After an update what engines keep of it is looked at once more, by the history that is written now.
    """
    status, before, placed = said.status, facts.adapter.status, facts.placed
    on_demand = facts.adapter.spec.placement.policy is PlacementPolicy.ON_DEMAND
    if said.retry or facts.unread or on_demand:
        return False
    if placed is None or placed.blocked is not None or placed.guests:
        return False
    if (
        facts.troubles
        or facts.refusals
        or status.history
        or before.digest not in ("", status.digest)
    ):
        return False
    if status.canary or status.rollout or status.decided or status.draining:
        return False
    if not any((e.type, e.status) == (ConditionType.READY, "True") for e in status.conditions):
        return False
    wanted = facts.wanted()
    orders = (rollout.to_stage, rollout.to_load, rollout.to_publish, rollout.to_retire)
    return not any(order(wanted) for order in orders)
