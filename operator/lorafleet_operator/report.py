"""What a pass says about its adapter: status, and what is worth an Event. Pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from lorafleet_operator import rollout
from lorafleet_operator.api.conditions import (
    ConditionType,
    Reason,
    condition,
    merge_conditions,
    outcome_of,
    ready_condition,
)
from lorafleet_operator.api.names import MAX_STATUS_ENGINES, short
from lorafleet_operator.api.v1alpha1 import AdapterEngine, LoRAAdapterStatus, Tier
from lorafleet_operator.content_conditions import content_conditions, refusals
from lorafleet_operator.course import updated
from lorafleet_operator.engine_entry import engine_entry
from lorafleet_operator.pushed_steps import pushed, step_of
from lorafleet_operator.revisions import digest_of, history
from lorafleet_operator.rollout_status import draining, settled_revision, trial_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lorafleet.errors import LorafleetError

    from lorafleet_operator.api.meta import Condition
    from lorafleet_operator.api.v1alpha1 import LoRAAdapter, PushedStep
    from lorafleet_operator.cluster.owned import NotWritten
    from lorafleet_operator.course import Course
    from lorafleet_operator.facts import Facts, Placed

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
    course = facts.course(now)
    now = now or datetime.now(UTC)
    wanted = facts.wanted(course)
    generation = facts.adapter.metadata.generation
    old = facts.adapter.status
    observed = [
        condition(type_, status, reason, message, generation=generation, now=now)
        for type_, (status, reason, message) in (
            (ConditionType.SOURCE_RESOLVED, _source(facts, wanted)),
            (ConditionType.PLACED, _placed(facts)),
            (ConditionType.LOADED, _loaded(facts, wanted, course)),
        )
    ]
    said = [
        condition(type_, status, reason, message, generation=generation, now=now)
        for type_, status, reason, message in content_conditions(facts)
    ]
    if facts.routing is not None:
        found = routed(facts.routing_problem)
        said.append(condition(ConditionType.ROUTED, *found, generation=generation, now=now))
    ready = rollout.ready(wanted)
    desired = facts.placed.wanted if facts.placed else 0
    last = ready_condition(observed, generation=generation, now=now)
    if last.status == "True" and facts.sleeps:
        last = condition(
            ConditionType.READY, True, Reason.READY, _ASLEEP, generation=generation, now=now
        )
    elif last.status == "True" and (ready < desired or not desired):
        text = f"{ready} of {desired} engines serve {facts.adapter.served_name}"
        last = condition(
            ConditionType.READY, False, Reason.LOADING, text, generation=generation, now=now
        )
    if course.trying and course.trial is not None and last.status == "True":
        last = condition(
            ConditionType.READY,
            False,
            Reason.CANARY,
            trial_text(course.trial, desired),
            generation=generation,
            now=now,
        )
    if facts.paused:
        last = condition(
            ConditionType.READY,
            None if last.status == "True" else False,
            Reason.PAUSED,
            f"paused by annotation; otherwise: {last.reason}: {last.message}",
            generation=generation,
            now=now,
        )
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
    trouble = _first(facts.troubles.values()) or facts.source_error
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


_ASLEEP: Final = "no engine has it; the first request to one brings it there"
_Found = tuple[bool | None, Reason, str]


def routed(problem: NotWritten | None) -> _Found:
    """Return what condition Routed says of what could not be written."""
    if problem is not None:
        return False, problem.reason, str(problem)
    return True, Reason.ROUTED, "requests find the engines"


def _source(facts: Facts, wanted: rollout.Wanted) -> _Found:
    # Who cannot take it and need not is told of by Placed: others serve it.
    there = [facts.refusals.get(view.uid) for view in facts.engines if facts.is_desired(view)]
    error = facts.rejection or _first(e for e in there if e is not None and e.terminal)
    if error is not None:
        return False, outcome_of(error).reason, _keeps_serving(wanted, str(error))
    if facts.source_error is not None:
        everywhere = facts.fingerprint and not rollout.to_stage(wanted)
        if not everywhere:
            return False, outcome_of(facts.source_error).reason, str(facts.source_error)
        text = f"the content is on all engines; the source now: {facts.source_error}"
        return True, Reason.RESOLVED, text
    if facts.pool is None and facts.placed is not None and facts.placed.blocked is not None:
        text = f"no engine can be asked: {facts.placed.blocked[1]}"
        return None, Reason.RESOLVING, text
    if facts.not_staged:
        return False, Reason.REVISION_NOT_STAGED, _keeps_serving(wanted, facts.not_staged)
    if not facts.fingerprint:
        return None, Reason.RESOLVING, "the source has not been read yet"
    if not facts.verdicts:
        return None, Reason.RESOLVING, f"{facts.origin}: no engine has said yet what it can take"
    notes = sorted({text for found in facts.verdicts.values() for text in found.notes})
    return True, Reason.RESOLVED, "; ".join([facts.origin, *notes])


def _placed(facts: Facts) -> _Found:
    placed = facts.placed
    if placed is None:
        return None, Reason.WAITING, "not planned yet"
    if placed.blocked is not None:
        return False, *placed.blocked
    if facts.sleeps:
        return True, Reason.PLACED, "on no engine until a request asks one for it"
    return True, Reason.PLACED, f"on {_names(placed.pods)}{_left_out(placed)}"


def _left_out(placed: Placed) -> str:
    """Return how many engines cannot take the content, and what the first of them says."""
    out = {pod: text for pod, text in placed.refused.items() if pod not in placed.pods}
    if not out:
        return ""
    pod, text = min(out.items())
    count = "1 other engine" if len(out) == 1 else f"{len(out)} other engines"
    return f"; {count} cannot take it: {pod}: {text}"


def _loaded(facts: Facts, wanted: rollout.Wanted, course: Course) -> _Found:
    desired = wanted.desired()
    if course.given_up is not None:
        return False, Reason.ROLLED_BACK, course.given_up.message
    problems = {**facts.refusals, **facts.troubles}
    failed = [(uid, problems[uid]) for uid in sorted(problems, key=lambda u: _order(problems[u]))]
    failed = [(uid, error) for uid, error in failed if any(uid == h.engine for h in desired)]
    if failed:
        uid, error = failed[0]
        more = f" (and {len(failed) - 1} more engines)" if len(failed) > 1 else ""
        text = f"engine {facts.view(uid).pod.name}: {error}{more}"
        return False, outcome_of(error).reason, _keeps_serving(wanted, text)
    if facts.sleeps and facts.fingerprint:
        return True, Reason.LOADED, _ASLEEP
    if facts.held_back:
        return False, Reason.LOAD_RATE_LIMITED, _keeps_serving(wanted, facts.held_back)
    if not facts.fingerprint or not desired:
        return None, Reason.WAITING, "an earlier condition has to become True first"
    away = [view for view in facts.engines if facts.is_desired(view) and not view.takes_orders]
    if away:
        text = f"engine {away[0].pod.name}: {away[0].message or 'vLLM is starting'}"
        if course.decided is False:
            text = _keeps_serving(wanted, f"{text}; no name moves before it answers")
        return False, Reason.ENGINE_UNREACHABLE, text
    if facts.full:
        uid, error = min(facts.full.items())
        text = f"engine {facts.view(uid).pod.name}: {error}; it will unload the old revision first"
        return False, Reason.LOADING, text
    unstaged = [holding for holding in desired if not holding.digest]
    if any(facts.pinned or holding.proved for holding in unstaged):
        names = _names([facts.view(holding.engine).pod.name for holding in unstaged])
        return False, Reason.REVISION_NOT_STAGED, f"not staged on {names}, nor on one of their kind"
    if unstaged:
        return False, Reason.STAGING, f"{len(unstaged)} of {len(desired)} engines lack the content"
    unloaded = [holding for holding in desired if not rollout.has_loaded(wanted, holding)]
    if unloaded:
        text = f"{len(unloaded)} of {len(desired)} engines have not loaded the revision"
        return False, Reason.LOADING, text
    if course.decided is False:
        return False, Reason.LOADING, "no name moves before every engine has loaded the revision"
    return True, Reason.LOADED, f"{len(desired)} engines hold {_digests(desired)}"


def _keeps_serving(wanted: rollout.Wanted, text: str) -> str:
    served: defaultdict[str, set[str]] = defaultdict(set)  # by name: it may be one of before
    for holding in wanted.holdings:
        for entry in holding.loaded:
            if entry.published and not rollout.serves(wanted, holding):
                served[entry.served_name].add(short(entry.digest))
    lines = [f"{', '.join(sorted(served[name]))} keeps serving {name}" for name in sorted(served)]
    return "; ".join([text, *lines])


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
            entries.append(entry.model_copy(update={"canary": trying, "step": step}))
    return sorted(entries, key=lambda e: (e.published and not e.message, e.pod_name))


def _tiers(entries: Sequence[AdapterEngine]) -> str:
    counts = {tier: sum(entry.tier is tier for entry in entries) for tier in Tier}
    present = {tier: count for tier, count in counts.items() if count}
    if len(present) == 1:
        return str(next(iter(present)))
    return " ".join(f"{tier}:{count}" for tier, count in present.items())


def _digests(holdings: Sequence[rollout.Holding]) -> str:
    return ", ".join(sorted({short(holding.digest) for holding in holdings}))


def _names(pods: Sequence[str]) -> str:
    shown = ", ".join(pods[:5])
    return f"{shown} and {len(pods) - 5} more" if len(pods) > 5 else shown


def _order(error: LorafleetError) -> tuple[bool, str]:
    return (not error.terminal, str(error))


def _first(errors: Any) -> LorafleetError | None:
    return min(errors, key=_order, default=None)
