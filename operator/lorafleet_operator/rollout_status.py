"""What a status says of an update: its trial, what is served everywhere, and what still drains. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lorafleet_operator.api.names import short
from lorafleet_operator.api.v1alpha1 import Draining, Revision
from lorafleet_operator.revisions import fingerprint_of

if TYPE_CHECKING:
    from lorafleet_operator.api.v1alpha1 import CanaryStatus
    from lorafleet_operator.facts import Facts


def trial_text(trial: CanaryStatus, desired: int) -> str:
    """Return the trial in one line. No figure that changes with each request: it is an Event's too."""
    since = f"since {trial.since:%H:%M:%S} UTC" if trial.since else "not on all of them yet"
    return f"{trial.engines} of {desired} engines try {short(trial.digest)} {since}"


def settled_revision(facts: Facts, digest: str) -> Revision:
    """Return what is served everywhere now, by the fingerprint that engines name it with."""
    fingerprint = fingerprint_of(facts.engines, digest) or facts.fingerprint
    return Revision(digest=digest, fingerprint=fingerprint)


def draining(facts: Facts) -> list[Draining]:
    """Return the old revisions that are still loaded, by digest."""
    found: dict[str, Draining] = {}
    for view in facts.engines:
        for entry in view.loaded(facts.key):
            if entry.draining:
                known = found.get(entry.digest) or Draining(digest=entry.digest)
                found[entry.digest] = known.model_copy(
                    update={
                        "engines": known.engines + 1,
                        "in_flight": known.in_flight + entry.in_flight,
                    }
                )
    return [found[digest] for digest in sorted(found)][:21]
