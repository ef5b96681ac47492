"""What a pass says of the content itself: how it was rewritten, what of it is left out, whether
it changes nothing, and which engines refuse it.

No condition has a part in Ready: a rewritten adapter is as good as one that was canonical already, and
one that changes nothing is served as it was written. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lorafleet_operator.api.adapter import MAX_REFUSALS, MAX_REFUSING_PODS
from lorafleet_operator.api.conditions import ConditionType, Reason
from lorafleet_operator.api.v1alpha1 import EngineRefusal

if TYPE_CHECKING:
    from lorafleet_operator.facts import Facts
    from lorafleet_operator.memory import Verdict

IDENTITY: Final = "AdapterIsIdentity"
"""The sidecar's note of a revision that changes nothing."""

Found = tuple[ConditionType, bool | None, Reason, str]


def content_conditions(facts: Facts) -> list[Found]:
    """Return what is known; a condition that is not known is left as it was."""
    found = (_normalized(facts), _partial(facts), _identity(facts))
    return [each for each in found if each is not None]


def _normalized(facts: Facts) -> Found | None:
    accepted = _accepted(facts)
    if not accepted or facts.pinned:
        return None
    # In the order of the rewrites; engines of several kinds may need several.
    lines = list(dict.fromkeys(text for found in accepted for text in found.normalized))
    if not lines:
        text = "the files were canonical already"
        return ConditionType.NORMALIZED, False, Reason.AS_FOUND, text
    count = "1 rewrite" if len(lines) == 1 else f"{len(lines)} rewrites"
    text = f"{count}: {'; '.join(lines)}"
    return ConditionType.NORMALIZED, True, Reason.REWRITTEN, text


def _accepted(facts: Facts) -> list[Verdict]:
    """Return what preflight said of the files themselves for engines that take them."""
    return [each for each in facts.verdicts.values() if each.error is None and not each.by_arena]


def _partial(facts: Facts) -> Found | None:
    """What the engines lack refuses the adapter; only the spec can leave it out."""
    accepted = _accepted(facts)
    if facts.pinned:
        return None
    lines = sorted({verdict.left_out for verdict in accepted if verdict.left_out})
    if lines:
        text = "; ".join(lines)
        return ConditionType.PARTIALLY_APPLIED, True, Reason.TOWER_DROPPED, text
    if not accepted or not _was_said(facts, ConditionType.PARTIALLY_APPLIED):
        return None
    text = "every module is applied"
    return ConditionType.PARTIALLY_APPLIED, False, Reason.APPLIED_WHOLE, text


def _identity(facts: Facts) -> Found | None:
    staged = [
        entry
        for view in facts.engines
        if (entry := view.staged(view.digest_of(facts.fingerprint))) is not None
    ]
    if not staged:
        return None
    if any(IDENTITY in entry.notes for entry in staged):
        text = "every update is zero: requests get the base model's answers"
        return ConditionType.ADAPTER_IS_IDENTITY, True, Reason.ALL_ZERO, text
    if not _was_said(facts, ConditionType.ADAPTER_IS_IDENTITY):
        return None
    text = "the adapter changes the base model's answers"
    return ConditionType.ADAPTER_IS_IDENTITY, False, Reason.HAS_EFFECT, text


def _was_said(facts: Facts, type_: ConditionType) -> bool:
    return any(entry.type == type_ for entry in facts.adapter.status.conditions)


def refusals(facts: Facts) -> list[EngineRefusal]:
    """Return what engines say that refuse the content, the most frequent first."""
    said: dict[str, list[str]] = {}
    for pod, text in sorted(facts.placed.refused.items()) if facts.placed else ():
        said.setdefault(" ".join(text.split())[:512], []).append(pod)
    return [
        EngineRefusal(message=text, engines=len(pods), pods=pods[:MAX_REFUSING_PODS])
        for text, pods in sorted(said.items(), key=lambda item: (-len(item[1]), item[0]))
    ][:MAX_REFUSALS]
