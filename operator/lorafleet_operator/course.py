"""Which content each engine should serve: the newest, or the one that it comes back to. Pure.

The newest is what the source holds, or what `spec.revision` names. It differs from the stable one
(revisions.py) while an update goes out; a trial, a rollback, or the wait for all engines (atomic.py)
says who of the engines gets which.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lorafleet_operator import atomic, canary
from lorafleet_operator.api.conditions import Reason
from lorafleet_operator.api.names import short
from lorafleet_operator.api.v1alpha1 import CanaryStatus, Revision, RolledBack
from lorafleet_operator.memory import TRIES
from lorafleet_operator.revisions import decided, digest_of, stable_revision

if TYPE_CHECKING:
    from datetime import datetime

    from lorafleet.v1alpha1 import sidecar_pb2 as pb

    from lorafleet_operator.api.v1alpha1 import Decision, RolloutStatus
    from lorafleet_operator.facts import Facts
    from lorafleet_operator.world import EngineView


@dataclass(frozen=True)
class Course:
    """What the engines of an adapter should come to serve."""

    newest: str = ""
    """Fingerprint of the content that is wanted everywhere in the end, "" while nobody knows it."""
    stable: Revision | None = None
    trial: CanaryStatus | None = None
    """The newest content's trial, also after its end, until all engines have followed."""
    trying: frozenset[str] | None = None
    """UIDs of the engines that try the newest content; None: it is for all of them."""
    given_up: RolledBack | None = None
    """Why the newest content is not wanted after all."""
    rollout: RolloutStatus | None = None
    """The newest content on its way to all engines at once, while nothing is decided."""
    decision: Decision | None = None
    """The newest content, once all engines are to serve it."""
    unanimous: bool = False
    """Whether that may be decided now."""

    @property
    def decided(self) -> bool | None:
        """Whether names may move to the newest content, if that is for all engines at once to do."""
        return True if self.decision is not None else None if self.rollout is None else False

    @property
    def main(self) -> str:
        """Fingerprint of what the engines serve that try nothing."""
        if self.stable is not None and (self.given_up is not None or self.trying is not None):
            return self.stable.fingerprint
        return self.newest

    def content_for(self, uid: str) -> str:
        """Return the fingerprint of what the engine of that pod should serve."""
        if self.given_up is None and self.trying is not None and uid in self.trying:
            return self.newest
        return self.main


def chart(facts: Facts, now: datetime) -> Course:
    """Return the course of the pass, from what it has found so far."""
    newest, stable = facts.fingerprint, stable_revision(facts)
    decision = decided(facts)
    if decision is not None and stable is not None:
        members = _members(facts, stable.fingerprint)
        if _same(facts, newest, stable.fingerprint) or not atomic.is_done(members):
            return Course(stable.fingerprint, stable, decision=atomic.goes_on(decision, members))
    if facts.adapter.spec.rollout.atomic:
        return _all_or_none(facts, stable, now)
    if not newest or facts.pinned or stable is None or _same(facts, newest, stable.fingerprint):
        return Course(newest, stable)
    given_up = facts.given_up or _given_up(facts) or _give_up(facts, stable, now)
    if given_up is not None:
        return Course(newest, stable, given_up=given_up)
    spec, before = facts.adapter.spec.rollout.canary, facts.adapter.status.canary
    if before is not None and before.fingerprint != newest:
        before = None
    if not digest_of(facts.engines, stable.fingerprint):
        spec = None  # no engine could serve anything but the newest
    if spec is None or (before is not None and before.promoted):
        return Course(newest, stable, trial=before if spec is not None else None)
    candidates = _candidates(facts, newest)
    if not candidates:  # asleep, or nowhere for now
        return Course(newest, stable, before, frozenset())
    trying = canary.choose(candidates, spec.engines_of(len(candidates)))
    trial = canary.watch(
        spec,
        Revision(digest=digest_of(facts.engines, newest), fingerprint=newest),
        before,
        [each for each in candidates if each.engine in trying],
        now,
    )
    if text := canary.failure(spec, trial):
        given_up = _rolled_back(facts, stable, Reason.ERROR_RATE, text, now)
        if given_up is not None:
            return Course(newest, stable, given_up=given_up)
    return Course(newest, stable, trial, None if trial.promoted else trying)


def _all_or_none(facts: Facts, stable: Revision | None, now: datetime) -> Course:
    """Return the course to a revision that is served everywhere or nowhere, while that is open.

    An engine that serves nothing, for it was restarted meanwhile, is given the stable one back,
    whatever has come of the source.
    """
    newest = facts.fingerprint
    if stable is not None and _same(facts, newest, stable.fingerprint):
        return Course(newest, stable)
    trying = frozenset(view.uid for view in facts.engines) - _idle(facts, stable)
    if not newest:
        return Course(newest, stable, trying=trying)
    if stable is not None and not facts.pinned:
        given_up = facts.given_up or _given_up(facts) or _give_up(facts, stable, now)
        if given_up is not None:
            return Course(newest, stable, given_up=given_up)
    members = _members(facts, newest)
    revision = Revision(digest=digest_of(facts.engines, newest), fingerprint=newest)
    return Course(
        newest,
        stable,
        trying=trying,
        rollout=atomic.gather(revision, members),
        unanimous=atomic.may_decide(members),
    )


def _idle(facts: Facts, stable: Revision | None) -> set[str]:
    """Return the engines that serve nothing and could serve the stable revision."""
    return {
        view.uid
        for view in facts.engines
        if stable is not None
        and view.digest_of(stable.fingerprint)
        and view.uid not in facts.unable
        and not any(_named(facts, entry) for entry in view.loaded(facts.key) if entry.published)
    }


def _members(facts: Facts, content: str) -> list[atomic.Member]:
    """Return how the adapter's engines stand to a content.

    One of the pool that serves the adapter, and that the plan has no room for, is none the less one
    of them.
    """
    placed = facts.placed
    short = placed is not None and len(placed.pods) < placed.wanted
    left_out = {
        view.uid
        for view in facts.engines
        if short
        and placed is not None
        and view.member
        and view.serves(facts.key)
        and not view.leaving
        and view.pod.name not in placed.displaced
    }
    found = []
    for view in facts.engines:
        if not facts.is_desired(view) and view.uid not in left_out | facts.awaited:
            continue
        loaded = _loaded(facts, view, content)
        found.append(
            atomic.Member(
                view.pod.name,
                answers=view.takes_orders,
                has=bool(view.digest_of(content)),
                loaded=bool(loaded) and view.uid not in facts.refusals,
                serves=any(entry.published for entry in loaded),
                refuses=view.uid in facts.unable,
            )
        )
    return found


def updated(facts: Facts, newest: str) -> int:
    """Return how many of the adapter's engines are known to serve the newest content."""
    return sum(each.serves and each.well for each in _candidates(facts, newest))


def _candidates(facts: Facts, newest: str) -> list[canary.Candidate]:
    marked = {each.pod_name for each in facts.adapter.status.engines if each.canary}
    found = []
    for view in facts.engines:
        if not facts.is_desired(view):
            continue
        loaded = _loaded(facts, view, newest)
        found.append(
            canary.Candidate(
                engine=view.uid,
                serves=any(entry.published for entry in loaded),
                loaded=bool(loaded),
                marked=view.pod.name in marked,
                well=view.takes_orders,
                requests=sum(entry.requests for entry in loaded),
                errors=sum(entry.errors for entry in loaded),
            )
        )
    return found


def _loaded(facts: Facts, view: EngineView, content: str) -> list[pb.LoadedAdapter]:
    """Return what the engine has loaded of a content under the name that is wanted, and proved.

    What drains was replaced, or refused.
    """
    digest = view.digest_of(content)
    return [
        entry
        for entry in view.loaded(facts.key)
        if digest and entry.digest == digest and _named(facts, entry)
        if not (entry.draining or entry.unproved)
    ]


def _named(facts: Facts, entry: pb.LoadedAdapter) -> bool:
    return entry.served_name == facts.adapter.served_name


def _same(facts: Facts, one: str, other: str) -> bool:
    """Return whether two fingerprints stand for one content, as far as any engine knows."""
    return one == other or any(
        digest and digest == view.digest_of(other)
        for view in facts.engines
        if (digest := view.digest_of(one))
    )


def _given_up(facts: Facts) -> RolledBack | None:
    """Return what the status says of this content under this spec."""
    known = facts.adapter.status.rolled_back
    if known is None or known.fingerprint != facts.fingerprint:
        return None
    return known if known.generation == facts.adapter.metadata.generation else None


def _give_up(facts: Facts, stable: Revision, now: datetime) -> RolledBack | None:
    """Return why the update cannot go on, None if it can: what engines said in this pass."""
    refused = {uid: (count, error) for uid, (count, error) in facts.failures.items()}
    moved = facts.adapter.spec.rollout.atomic or updated(facts, facts.fingerprint) > 0
    for uid, error in facts.refusals.items():
        if moved and uid in facts.troubles:
            refused[uid] = (TRIES, error)
    for uid, (count, error) in sorted(refused.items()):
        if count >= TRIES:
            text = f"engine {facts.view(uid).pod.name}: {error}"
            return _rolled_back(facts, stable, error.reason, text, now)
    return None


def _rolled_back(
    facts: Facts, stable: Revision, reason: str, text: str, now: datetime
) -> RolledBack | None:
    """Return the note of a rollback, None if there is nothing that one could go back to."""
    back = digest_of(facts.engines, stable.fingerprint)
    if not back:
        return None
    digest = digest_of(facts.engines, facts.fingerprint)
    return RolledBack(
        digest=digest,
        fingerprint=facts.fingerprint,
        generation=facts.adapter.metadata.generation,
        reason=reason,
        message=f"{short(digest) or 'the content'} was given up, {short(back)} is served: {text}",
        time=now.replace(microsecond=0),
    )
