"""What a pass says of how far the adapter has come: whether its source is known, where it is placed and
loaded, whether requests find it, and so whether it is Ready. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Final

from lorafleet_operator import rollout
from lorafleet_operator.api.conditions import ConditionType, Reason, condition, outcome_of
from lorafleet_operator.api.names import short
from lorafleet_operator.rollout_status import trial_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lorafleet.errors import LorafleetError

    from lorafleet_operator.api.meta import Condition
    from lorafleet_operator.cluster.owned import NotWritten
    from lorafleet_operator.course import Course
    from lorafleet_operator.facts import Facts, Placed

ASLEEP: Final = "no engine has it; the first request to one brings it there"

_WORDS: Final[dict[str, bool | None]] = {"True": True, "False": False}

Told = tuple[bool | None, Reason, str]
"""Status, reason and message of a condition."""


def progress_conditions(
    facts: Facts, wanted: rollout.Wanted, course: Course
) -> list[tuple[ConditionType, bool | None, Reason, str]]:
    """Return the conditions that Ready sums up."""
    return [
        (ConditionType.SOURCE_RESOLVED, *_source(facts, wanted)),
        (ConditionType.PLACED, *_placed(facts)),
        (ConditionType.LOADED, *_loaded(facts, wanted, course)),
    ]


def readiness(facts: Facts, course: Course, so_far: Condition, ready: int) -> Condition:
    """Return condition Ready. so_far: as the conditions above have it; ready: engines that serve."""
    say = partial(
        condition,
        ConditionType.READY,
        generation=so_far.observed_generation,
        now=so_far.last_transition_time,
    )
    desired = facts.placed.wanted if facts.placed else 0
    found = so_far
    if found.status == "True" and facts.sleeps:
        found = say(True, Reason.READY, ASLEEP)
    elif found.status == "True" and (ready < desired or not desired):
        text = f"{ready} of {desired} engines serve {facts.adapter.served_name}"
        found = say(False, Reason.LOADING, text)
    if found.status == "True" and course.trying and course.trial is not None:
        found = say(False, Reason.CANARY, trial_text(course.trial, desired))
    if facts.paused:
        status = None if found.status == "True" else False
        text = f"paused by annotation; otherwise: {found.reason}: {found.message}"
        found = say(status, Reason.PAUSED, text)
    return found


def routed(problem: NotWritten | None) -> Told:
    """Return what condition Routed says of what could not be written."""
    if problem is not None:
        return False, problem.reason, str(problem)
    return True, Reason.ROUTED, "requests find the engines"


def _source(facts: Facts, wanted: rollout.Wanted) -> Told:
    # Who cannot take it and need not is told of by Placed: others serve it.
    there = [facts.refusals.get(view.uid) for view in facts.engines if facts.is_desired(view)]
    error = facts.rejection or gravest(e for e in there if e is not None and e.terminal)
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
    if facts.unread and (before := _said_of_source(facts)) is not None:
        return before
    if not facts.fingerprint:
        return None, Reason.RESOLVING, "the source has not been read yet"
    if not facts.verdicts:
        return None, Reason.RESOLVING, f"{facts.origin}: no engine has said yet what it can take"
    notes = sorted({text for found in facts.verdicts.values() for text in found.notes})
    return True, Reason.RESOLVED, "; ".join([facts.origin, *notes])


def _said_of_source(facts: Facts) -> Told | None:
    """Return what the status says of the source under the present spec: that counts until it answers."""
    for each in facts.adapter.status.conditions:
        now = each.observed_generation == facts.adapter.metadata.generation
        if each.type == ConditionType.SOURCE_RESOLVED and now:
            return _WORDS.get(each.status), Reason(each.reason), each.message
    return None


def _placed(facts: Facts) -> Told:
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


def _loaded(facts: Facts, wanted: rollout.Wanted, course: Course) -> Told:
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
        return True, Reason.LOADED, ASLEEP
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


def gravest(errors: Iterable[LorafleetError]) -> LorafleetError | None:
    """Return the error to tell of: one that does not pass by itself, if there is one."""
    return min(errors, key=_order, default=None)


def _order(error: LorafleetError) -> tuple[bool, str]:
    return (not error.terminal, str(error))


def _digests(holdings: Sequence[rollout.Holding]) -> str:
    return ", ".join(sorted({short(holding.digest) for holding in holdings}))


def _names(pods: Sequence[str]) -> str:
    shown = ", ".join(pods[:5])
    return f"{shown} and {len(pods) - 5} more" if len(pods) > 5 else shown
