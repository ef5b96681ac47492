"""What a pass says about its adapter: status, and what is worth an Event. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final

from lorafleet_operator import rollout
from lorafleet_operator.api.conditions import (
    ConditionType,
    Reason,
    condition,
    merge_conditions,
    ready_condition,
)
from lorafleet_operator.api.names import MAX_STATUS_ENGINES
from lorafleet_operator.api.v1alpha1 import AdapterEngine, LoRAAdapterStatus, Tier
from lorafleet_operator.content_conditions import content_conditions, refusals
from lorafleet_operator.course import updated
from lorafleet_operator.engine_entry import engine_entry
from lorafleet_operator.progress_conditions import (
    gravest,
    progress_conditions,
    readiness,
    routed,
)
from lorafleet_operator.pushed_steps import pushed, step_of
from lorafleet_operator.revisions import digest_of, history
from lorafleet_operator.rollout_status import draining, settled_revision

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lorafleet_operator.api.meta import Condition
    from lorafleet_operator.api.v1alpha1 import LoRAAdapter, PushedStep
    from lorafleet_operator.course import Course
    from lorafleet_operator.facts import Facts

_QUIET: Final = frozenset(
    {Reason.WAITING, Reason.STAGING, Reason.LOADING, Reason.RESOLVING, Reason.PAUSED}
    | {
        Reason.CANARY,
        Reason.LOAD_RATE_LIMITED,
        Reason.AS_FOUND,
        Reason.APPLIED_WHOLE,
        Reason.HAS_EFFECT,
        Reason.ENGINES_STARTING,
    }
)
"""Steps on the way and plain facts, seen in the conditions: no Events about them."""


_WORTH_AN_EVENT: Final = frozenset(
    {ConditionType.READY, ConditionType.PARTIALLY_APPLIED, ConditionType.ENGINES_READY}
)
"""Conditions whose becoming True is news too."""


@dataclass(frozen=True)
class Report:
    """The new status, and whether the pass has to be repeated soon."""

    status: LoRAAdapterStatus
    retry: bool
    """Something failed that may pass: try again with backoff."""
    error_reason: str = ""
    """The reason of the failure, for the metric."""
    error: str = ""


def report(facts: Facts, now: datetime | None = None) -> Report:
    """Return what there is to say after the pass."""
    course = facts.course(now)  # by the clock that never jumps; people read the wall clock's time
    now = now or datetime.now(UTC)
    wanted = facts.wanted(course)
    generation = facts.adapter.metadata.generation
    old = facts.adapter.status
    ready = rollout.ready(wanted)
    desired = facts.placed.wanted if facts.placed else 0
    say = partial(condition, generation=generation, now=now)
    observed = [say(*found) for found in progress_conditions(facts, wanted, course)]
    said = [say(*found) for found in content_conditions(facts)]
    if facts.routing is not None:
        said.append(say(ConditionType.ROUTED, *routed(facts.routing_problem)))
    so_far = ready_condition(observed, generation=generation, now=now)
    last = readiness(facts, course, so_far, ready)
    kept = [
        each
        for each in old.conditions
        if each.type != ConditionType.ROUTED or facts.routing_unknown
    ]
    steps = pushed(facts)
    entries = _entries(facts, course, steps, now)
    lost = facts.placed is not None and facts.placed.lost_name
    digest = digest_of(facts.engines, course.main) or old.digest
    settled = bool(desired) and ready == desired and course.main == course.newest != ""
    settled = settled and not facts.awaited
    status = LoRAAdapterStatus(
        observed_generation=generation,
        digest=digest,
        fingerprint=("" if facts.pinned else facts.fingerprint) or old.fingerprint,
        resolved_revision=facts.revision[:512] or old.resolved_revision,
        served_name="" if lost else facts.adapter.served_name,
        pool="" if lost else facts.adapter.pool_key,
        residency=facts.adapter.spec.wanted_residency,
        size_bytes=old.size_bytes if facts.size_bytes is None else facts.size_bytes,
        rank=old.rank if facts.rank is None else facts.rank,
        desired_engines=desired,
        ready_engines=ready,
        updated_engines=ready if course.main == course.newest else updated(facts, course.newest),
        engines_summary=f"{ready}/{desired}",
        tier_summary=_tiers(entries),
        step_summary=_steps(entries),
        engines=entries[:MAX_STATUS_ENGINES],
        refusals=refusals(facts),
        history=history(facts, digest, course.given_up),
        pushed=steps,
        stable=settled_revision(facts, digest) if settled else course.stable,
        canary=None if settled else course.trial,
        rollout=None if settled else course.rollout,
        decided=None if settled else course.decision,
        rolled_back=course.given_up,
        draining=draining(facts),
        routing=facts.routing or (old.routing if facts.routing_unknown else None),
        conditions=merge_conditions(kept, [*observed, *said, last]),
    )
    problem = facts.routing_problem
    trouble = gravest(facts.troubles.values()) or facts.source_error
    return Report(
        status=status,
        retry=(trouble is not None and not trouble.terminal)
        or (problem is not None and problem.reason is Reason.ROUTE_REFUSED),
        error_reason=trouble.reason if trouble else str(problem.reason) if problem else "",
        error=str(trouble or problem or ""),
    )


def failed(adapter: LoRAAdapter, error: Exception, now: datetime | None = None) -> Report:
    """Return what there is to say after a pass that ended with an unexpected error.

    Its text is for the log alone: nobody has looked at what it may hold.
    """
    now = now or datetime.now(UTC)
    text = f"the operator failed unexpectedly ({type(error).__name__}); its log says more"
    said = [
        condition(
            type_,
            False,
            Reason.INTERNAL_ERROR,
            text,
            generation=adapter.metadata.generation,
            now=now,
        )
        for type_ in (ConditionType.LOADED, ConditionType.READY)
    ]
    conditions = merge_conditions(adapter.status.conditions, said)
    status = adapter.status.model_copy(update={"conditions": conditions})
    return Report(status, retry=True, error_reason=Reason.INTERNAL_ERROR, error=text)


def transitions(old: Sequence[Condition], new: Sequence[Condition]) -> list[Condition]:
    """Return the conditions that people should hear of: new failures, becoming Ready, and a part
    that is left out."""
    before = {entry.type: (entry.status, entry.reason) for entry in old}
    news = [
        entry
        for entry in new
        if before.get(entry.type) != (entry.status, entry.reason)
        and entry.reason not in _QUIET
        and (entry.status == "False" or entry.type in _WORTH_AN_EVENT)
    ]
    # Ready repeats the condition that keeps it from being True: one Event tells of both.
    ready = {(e.status, e.reason, e.message) for e in news if e.type == ConditionType.READY}
    return [
        entry
        for entry in news
        if entry.type == ConditionType.READY
        or (entry.status, entry.reason, entry.message) not in ready
    ]


def _entries(
    facts: Facts, course: Course, steps: Sequence[PushedStep], now: datetime
) -> list[AdapterEngine]:
    """Return one entry for each engine that has or should have the adapter, trouble first."""
    before = {entry.pod_name: entry for entry in facts.adapter.status.engines}
    entries = []
    for view in facts.engines:
        if facts.is_desired(view) or view.loaded(facts.key) or view.uid in facts.awaited:
            error = facts.troubles.get(view.uid) or facts.refusals.get(view.uid)
            content = course.content_for(view.uid)
            entry = engine_entry(view, facts.key, content, error, before.get(view.pod.name), now)
            trying = course.trial is not None and view.uid in (course.trying or ())
            served = view.staged(entry.digest) if entry.published else None
            step = step_of(steps, served.fingerprint) if served is not None else None
            guest = facts.placed is not None and view.pod.name in facts.placed.guests
            known = {"canary": trying, "guest": guest, "step": step}
            entries.append(entry.model_copy(update=known))
    return sorted(entries, key=lambda e: (e.published and not e.message, e.pod_name))


def _tiers(entries: Sequence[AdapterEngine]) -> str:
    counts = {tier: sum(entry.tier is tier for entry in entries) for tier in Tier}
    present = {tier: count for tier, count in counts.items() if count}
    if len(present) == 1:
        return str(next(iter(present)))
    return " ".join(f"{tier}:{count}" for tier, count in present.items())


def _steps(entries: Sequence[AdapterEngine]) -> str:
    served = {entry.step for entry in entries if entry.step is not None}
    return "-".join(str(step) for step in sorted({min(served), max(served)})) if served else ""
