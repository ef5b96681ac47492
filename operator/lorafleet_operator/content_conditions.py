"""What a pass says of the content itself: how it was rewritten, and whether it changes nothing.

Neither has a part in Ready: a rewritten adapter is as good as one that was canonical already, and
one that changes nothing is served as it was written. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lorafleet_operator.api.conditions import ConditionType, Reason

if TYPE_CHECKING:
    from lorafleet_operator.facts import Facts

IDENTITY: Final = "AdapterIsIdentity"
"""The sidecar's note of a revision whose every lora_B is zero."""

Found = tuple[ConditionType, bool | None, Reason, str]


def content_conditions(facts: Facts) -> list[Found]:
    """Return what is known; a condition that is not known is left as it was."""
    return [found for found in (_normalized(facts), _identity(facts)) if found is not None]


def _normalized(facts: Facts) -> Found | None:
    accepted = [found for found in facts.verdicts.values() if found.error is None]
    if not accepted:
        return None
    # In the order of the rewrites; engines of several kinds may need several.
    lines = list(dict.fromkeys(text for found in accepted for text in found.normalized))
    if not lines:
        text = "the files were canonical already"
        return ConditionType.NORMALIZED, False, Reason.AS_FOUND, text
    count = "1 rewrite" if len(lines) == 1 else f"{len(lines)} rewrites"
    text = f"{count}: {'; '.join(lines)}"
    return ConditionType.NORMALIZED, True, Reason.REWRITTEN, text


def _identity(facts: Facts) -> Found | None:
    staged = [
        entry
        for view in facts.engines
        if (entry := view.staged(view.digest_of(facts.fingerprint))) is not None
    ]
    if not staged:
        return None
    if any(IDENTITY in entry.notes for entry in staged):
        text = "every lora_B is zero: requests get the base model's answers"
        return ConditionType.ADAPTER_IS_IDENTITY, True, Reason.ALL_ZERO, text
    before = {entry.type for entry in facts.adapter.status.conditions}
    if ConditionType.ADAPTER_IS_IDENTITY not in before:
        return None
    text = "the adapter changes the base model's answers"
    return ConditionType.ADAPTER_IS_IDENTITY, False, Reason.HAS_EFFECT, text
