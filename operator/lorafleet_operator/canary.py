"""A revision on trial: which engines try it, and what their own figures say of it. Pure.

What has to outlast a pass, or the operator, is in the adapter's status: since when the trial runs
and which engines take part. All else is read from the engines each time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from lorafleet_operator.api.v1alpha1 import CanaryStatus

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from lorafleet_operator.api.v1alpha1 import Canary, Revision

FEWEST_REQUESTS: Final = 10
"""Before the end of a trial its failed requests are held against this many at least: one request
that fails first is no verdict."""


@dataclass(frozen=True)
class Candidate:
    """One engine that may try, or tries, the new revision."""

    engine: str
    serves: bool = False
    """Whether the served name pointed at the new revision when the engine last spoke."""
    loaded: bool = False
    """Whether it had it loaded then."""
    marked: bool = False
    """Whether the status names it as one that tries it."""
    well: bool = True
    """Whether it takes orders now."""
    requests: int = 0
    """Requests that it has answered with the new revision, failed ones included."""
    errors: int = 0


def choose(candidates: Sequence[Candidate], count: int) -> frozenset[str]:
    """Return the `count` engines that try the new revision.

    Those that serve it stay, also without contact: one that comes back must not be one too many.
    """
    ordered = sorted(
        candidates,
        key=lambda each: (
            not each.serves,
            not each.loaded,
            not each.marked,
            not each.well,
            each.engine,
        ),
    )
    return frozenset(each.engine for each in ordered[:count])


def watch(
    spec: Canary,
    revision: Revision,
    before: CanaryStatus | None,
    trying: Sequence[Candidate],
    now: datetime,
) -> CanaryStatus:
    """Return the state of the trial, promoted once it has been held for long enough."""
    serving = bool(trying) and all(each.serves and each.well for each in trying)
    since = before.since if before is not None else None
    if since is None and serving:
        since = now.replace(microsecond=0)
    held = since is not None and now - since >= timedelta(seconds=spec.hold_seconds)
    return CanaryStatus(
        digest=revision.digest,
        fingerprint=revision.fingerprint,
        since=since,
        engines=len(trying),
        traffic_percent=spec.traffic_percent,
        requests=sum(each.requests for each in trying),
        errors=sum(each.errors for each in trying),
        promoted=held and serving,
    )


def failure(spec: Canary, trial: CanaryStatus) -> str:
    """Return why the trial has failed, "" while it has not."""
    least = trial.requests if trial.promoted else max(trial.requests, FEWEST_REQUESTS)
    if trial.errors <= spec.error_rate * least:
        return ""
    return (
        f"{trial.errors} of {trial.requests} requests failed on the engines that tried it, "
        f"more than {str(spec.max_error_rate).removesuffix('%')}%"
    )
