"""One adapter's place in the plan of its pool: from what a pass has found to its engines."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from lorafleet_operator.api.conditions import Reason
from lorafleet_operator.facts import Placed
from lorafleet_operator.memory import TRIES
from lorafleet_operator.permissions import refusal
from lorafleet_operator.placement import (
    AdapterDemand,
    Policy,
    blocked,
    displaced_from,
    lacks_piece,
    over_quota_on,
    wanted,
)
from lorafleet_operator.world import engine_view

if TYPE_CHECKING:
    from collections.abc import Collection

    from lorafleet_operator.facts import Facts
    from lorafleet_operator.fleet import Fleet
    from lorafleet_operator.pool_planner import PoolPlanner

_IDLE_SECONDS: Final = 3600
"""How long an adapter on demand stays where nobody asks for it, if its spec does not say."""


def place(facts: Facts, fleet: Fleet) -> None:
    """Choose the adapter's engines, beside all other adapters of the pool.

    Others whose engines that changes are woken. From here on the pass looks at no engine that
    neither has the adapter nor should have it, however large the pool is.
    """
    pool = facts.pool
    if facts.forbidden is not None:
        _bar(facts, fleet)
        facts.placed = Placed(blocked=facts.forbidden, lost_name=True)
        return
    if pool is None:
        reason = f"EnginePool {facts.adapter.pool_key} does not exist"
        facts.placed = Placed(blocked=(Reason.POOL_NOT_FOUND, reason))
        return
    planner = fleet.planner(pool.key)
    planner.look_at_engines(pool, fleet.world, fleet.links, fleet.settings.engine_grace_seconds)
    planner.look_at_adapters(fleet.world.adapters.get(pool.key) or (), fleet.barred)
    rivals = list(fleet.sharing_engines(pool))
    owner = _claim(facts, fleet, planner, rivals)
    needs = demand(facts, planner, fleet)
    gone = _gone_names(facts, planner, rivals)
    kept = _kept_names(facts, gone, fleet)
    planner.keep(facts.key, kept if owner is not None else frozenset())
    if owner is None:
        planner.plan.set_adapter(needs)
    elif kept:
        planner.plan.set_adapter(replace(needs, held_back=True))  # it takes room, and gets no more
    else:
        planner.plan.drop_adapter(facts.key)
    planner.settle(fleet.wakeups, but=facts.key)
    see_chosen(facts, fleet, planner)
    if owner is not None:
        text = f"served name {facts.adapter.served_name} is taken by {owner}"
        if kept:
            text += f"; it goes on as {', '.join(sorted(kept))}"
        facts.placed = Placed(
            blocked=(Reason.NAME_TAKEN, text), lost_name=True, gone_names=gone, kept_names=kept
        )
        return
    entry = planner.plan.entries[facts.key]
    want = wanted(planner.plan, entry)
    facts.placed = Placed(
        pods=tuple(sorted(entry.chosen)),
        wanted=want,
        blocked=blocked(planner.plan, entry, want),
        displaced=displaced_from(planner.plan, entry) | _over_quota(facts, planner),
        sheltered=planner.plan.books.sheltered_on(facts.key),
        refused=needs.refused,
        guests=entry.guests,
        gone_names=gone,
    )
    if facts.placed.blocked is not None and lacks_piece(planner.plan, entry):
        fleet.ahead.give_way(pool.key)


def stays_in_place(facts: Facts, fleet: Fleet) -> bool:
    """Give the pass the engines that the plan has for the adapter; return whether the content changes
    nothing about that, so that it may go there before anybody decides anew.

    Not where a tenant has so many loads a minute: each has to wait for its own.
    """
    if facts.forbidden is not None or facts.pool is None:
        return False
    planner = fleet.planner(facts.pool.key)
    entry = planner.plan.entries.get(facts.key)
    owner = planner.owner(facts.adapter.served_name, fleet.sharing_engines(facts.pool))
    if entry is None or owner != facts.key:
        return False
    tenancy, planned = planner.plan.board.tenancy, entry.demand
    rule = tenancy.rule(tenancy.tenant_of(facts.adapter.metadata.namespace))
    if (
        (facts.size_bytes or 0) > (planned.size_bytes or 0)
        or facts.rank != planned.rank
        or (rule is not None and rule.loads_per_minute is not None)
    ):
        return False
    want = wanted(planner.plan, entry)
    facts.placed = Placed(pods=tuple(sorted(entry.chosen)), wanted=want, guests=entry.guests)
    see_chosen(facts, fleet, planner)
    return True


def _claim(
    facts: Facts, fleet: Fleet, planner: PoolPlanner, rivals: list[PoolPlanner]
) -> str | None:
    """Claim the adapter's served name; return the other adapter that owns it.

    A renamed one wakes who waits for the name of before, and who has or wants the new one.
    """
    name, before = facts.adapter.served_name, planner.claimed_by(facts.key)
    # Who was renamed just now, and has had no pass since, is in nobody's way: two may swap names.
    others = {key for each in (planner, *rivals) for key in each.claimants(name)} - {facts.key}
    renamed = (
        {k.key for k in fleet.world.known(others) if k.served_name != name} if others else set()
    )
    holds = facts.adapter.holds_name
    owner = planner.claim(facts.key, name, facts.created, rivals, holds=holds, but=renamed)
    if owner is None:
        planner.hold(facts.key)
    if before != name:
        concerned = {key for each in (planner, *rivals) for key in each.claimants(before)}
        concerned |= {key for each in (planner, *rivals) for key in each.claimants(name)}
        concerned |= {
            entry.adapter
            for view in facts.engines
            if view.inventory is not None
            for entry in view.inventory.loaded
            if entry.served_name == name
        }
        for key in concerned - {facts.key}:
            fleet.wakeups.wake(key)
        if before:
            fleet.name_freed(before)
    return owner


def _gone_names(facts: Facts, planner: PoolPlanner, rivals: list[PoolPlanner]) -> frozenset[str]:
    """Return the names under which engines still serve the adapter and that are another's by now."""
    return frozenset(
        name
        for name in _served_names(facts)
        if planner.owner(name, rivals) not in (None, facts.key)
    )


def _kept_names(facts: Facts, gone: Collection[str], fleet: Fleet) -> frozenset[str]:
    """Return the names of before that the adapter may go on under while the new one is taken."""
    adapter = facts.adapter
    return frozenset(
        name
        for name in _served_names(facts) - {adapter.served_name, *gone}
        if refusal(fleet.world, adapter.metadata.namespace, adapter.pool_key, name) is None
    )


def _served_names(facts: Facts) -> set[str]:
    return {entry.served_name for view in facts.engines for entry in view.loaded(facts.key)}


def _bar(facts: Facts, fleet: Fleet) -> None:
    """Let an adapter that may not be there have no place in the plan."""
    planner = fleet.planner(facts.adapter.pool_key)
    planner.bar(facts.key, facts.created)
    planner.settle(fleet.wakeups, but=facts.key)


def _over_quota(facts: Facts, planner: PoolPlanner) -> frozenset[str]:
    """Return the pods whose engine has to let go of the adapter, for its tenant has no quota left.

    Of the content that is wanted: an update that is too large for the quota ends nothing that is
    served.
    """
    over = over_quota_on(planner.plan, planner.plan.entries[facts.key])
    return frozenset(
        view.pod.name
        for view in facts.engines
        if view.pod.name in over
        and view.digest_of(facts.fingerprint) in {each.digest for each in view.loaded(facts.key)}
    )


def see_chosen(facts: Facts, fleet: Fleet, planner: PoolPlanner) -> None:
    """Let the pass go on with the engines that have, had or should have the adapter, and no others.

    Those that were only chosen now say of the content what another of their profile said.
    """
    concerned = planner.concerned(facts.adapter)
    said = {
        id(view.profile): facts.verdicts[view.uid]
        for view in facts.engines
        if view.uid in facts.verdicts
    }
    seen = [v for v in facts.engines if not v.member or v.pod.name in concerned]
    for name in (concerned - {view.pod.name for view in seen}) & planner.members.keys():
        view = engine_view(planner.members[name], fleet.links)
        verdict = said.get(id(view.profile))
        if verdict is not None:
            facts.verdicts[view.uid] = verdict
            if verdict.error is not None:
                facts.refusals[view.uid] = verdict.error
        seen.append(view)
    facts.engines = sorted(seen, key=lambda view: (not view.member, view.pod.name))


def demand(facts: Facts, planner: PoolPlanner, fleet: Fleet) -> AdapterDemand:
    """Return what the pass's adapter needs: what the pass has found out counts, then the status.

    An engine that refused the content for good, or three times, gets it only if no other can take
    it, unless it has the adapter: a refused update must not end what is served.
    """
    known, metadata = (
        AdapterDemand.from_adapter(facts.adapter, facts.created),
        facts.adapter.metadata,
    )
    refused = {}
    for view in facts.engines:
        about = (metadata.uid, view.instance, metadata.generation, facts.fingerprint)
        if fleet.memory.failures_of(*about) >= TRIES:
            refused[view.pod.name] = f"refused the content {TRIES} times"
        if view.uid in facts.refusals:
            refused[view.pod.name] = text = str(facts.refusals[view.uid])
            verdict = facts.verdicts.get(view.uid)
            if verdict is not None and verdict.error is not None and view.profile is not None:
                refused |= dict.fromkeys(planner.of_profile(view.profile), text)
    known = replace(
        known,
        size_bytes=known.size_bytes if facts.size_bytes is None else facts.size_bytes,
        rank=known.rank if facts.rank is None else facts.rank,
        refused=refused,
        held_back=facts.paused or facts.rejection is not None or facts.out_of_reach,
    )
    return as_asked(known, facts, planner, fleet)


def as_asked(
    known: AdapterDemand, facts: Facts, planner: PoolPlanner, fleet: Fleet
) -> AdapterDemand:
    """Return the demand with what requests ask for: nothing of policy All.

    An engine beyond the replicas keeps the adapter as a guest until nobody asks for it.
    """
    if known.policy is Policy.ALL:
        return known
    requested, idle = _requested(facts, planner, fleet), _idle(facts)
    if known.on_demand:
        return replace(known, requested=requested, idle=idle)
    mark = facts.guest_residency
    guests = frozenset(
        view.pod.name
        for view in facts.engines
        if any(entry.residency == mark for entry in view.loaded(facts.key))
    )
    return replace(known, requested=requested, visits=guests - idle)


def _requested(facts: Facts, planner: PoolPlanner, fleet: Fleet) -> frozenset[str]:
    """Return the engines where requests wait for the adapter, by pod name."""
    pods = fleet.requested.pods(facts.adapter.served_name)
    return (
        frozenset(pod.name for pod in planner.members.values() if pod.key in pods) if pods else pods
    )


def _idle(facts: Facts) -> frozenset[str]:
    """Return the engines where no request has asked for the adapter for long, by pod name."""
    limit = facts.adapter.spec.placement.idle_seconds or _IDLE_SECONDS
    return frozenset(
        view.pod.name
        for view in facts.engines
        if (loaded := view.loaded(facts.key))
        and all(entry.idle_seconds >= limit and not entry.in_flight for entry in loaded)
    )
