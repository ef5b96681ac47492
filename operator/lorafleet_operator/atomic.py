"""A revision that all engines of an adapter are to serve or none: when that is decided. Pure.

Phase one is an update in which every engine loads and proves the revision and no name moves. Then
the decision stands in the adapter's status, and in phase two every name moves, on engines that were
away too: there is no way back any more. What has to outlast a pass is `status.decided`; all else is
read from the engines each time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lorafleet_operator.api.rollout import MAX_NAMED
from lorafleet_operator.api.v1alpha1 import Decision, RolloutStatus

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from lorafleet_operator.api.v1alpha1 import Revision


@dataclass(frozen=True)
class Member:
    """One engine that the adapter is to be served on, and how it stands to one revision."""

    pod: str
    answers: bool = True
    """Whether it takes orders now: what it said before it fell silent is no vote."""
    has: bool = False
    """Whether it has the revision staged, when it last spoke."""
    loaded: bool = False
    """Whether it has loaded and proved it."""
    serves: bool = False
    refuses: bool = False
    """Whether it cannot take the revision, for good or after so many tries."""


def gather(revision: Revision, members: Sequence[Member]) -> RolloutStatus:
    """Return how far the revision is while nothing is decided."""
    silent, ready = [each.pod for each in members if not each.answers], _ready(members)
    return RolloutStatus(
        digest=revision.digest,
        fingerprint=revision.fingerprint,
        engines=ready[:MAX_NAMED],
        engine_count=len(ready),
        waiting_for=min(silent, default=""),
    )


def may_decide(members: Sequence[Member]) -> bool:
    """Return whether every engine has the revision loaded now, so that all names may move."""
    return bool(members) and len(_ready(members)) == len(members)


def decide(found: RolloutStatus, now: datetime) -> Decision:
    """Return the decision that all engines serve the revision."""
    return Decision(**found.model_dump(), time=now.replace(microsecond=0))


def goes_on(decided: Decision, members: Sequence[Member]) -> Decision:
    """Return a decision that has to be carried out still, with whom it waits for."""
    silent = [each.pod for each in members if not each.answers]
    return decided.model_copy(update={"waiting_for": min(silent, default="")})


def is_done(members: Sequence[Member]) -> bool:
    """Return whether everybody who can serve the decided revision does, so that the next may begin.

    A new engine that has never had it need not: it gets the next one at once.
    """
    return not any(
        (each.has or not each.answers) and not each.serves and not each.refuses for each in members
    )


def _ready(members: Sequence[Member]) -> list[str]:
    return sorted(each.pod for each in members if each.answers and each.loaded)
