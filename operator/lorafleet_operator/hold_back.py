"""Loads that come too soon for their tenant: the pass says so, orders nothing, and comes again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lorafleet_operator import rollout
from lorafleet_operator.placement import name_of

if TYPE_CHECKING:
    from lorafleet_operator.facts import Facts
    from lorafleet_operator.fleet import Fleet


def hold_back(facts: Facts, fleet: Fleet) -> None:
    """Let the pass order no load while its tenant's rate does not allow one.

    The way back from a revision that was given up waits for nothing: it ends failed requests. Nor
    does what was decided for all engines: some of them serve it already.
    """
    if facts.pool is None or facts.paused:
        return
    tenancy = fleet.planner(facts.pool.key).plan.board.tenancy
    tenant = tenancy.tenant_of(facts.adapter.metadata.namespace)
    rule = tenancy.rule(tenant)
    if rule is None or rule.loads_per_minute is None:
        return
    if not facts.may_act or not _would_load(facts):
        return
    course = facts.course()
    if course.given_up is not None or course.decided:
        return
    seconds = fleet.load_rates.wait(facts.pool.key, tenant, facts.key, rule.loads_per_minute)
    if seconds:
        loads = f"{rule.loads_per_minute} loads a minute"
        facts.held_back = f"tenant {name_of(tenant)} has {loads}, all are taken for now"
        fleet.wakeups.later(facts.key, seconds)


def _would_load(facts: Facts) -> bool:
    """Return whether the pass is about to send or load anything. An engine that cannot be reached,
    or that has not said what it takes, gets nothing now."""
    wanted = facts.wanted()
    if rollout.to_load(wanted):
        return True
    return any(
        uid in facts.verdicts and not facts.view(uid).problem for uid in rollout.to_stage(wanted)
    )
