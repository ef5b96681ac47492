"""Which revisions an adapter has: the stable one, those before it, and what engines keep of them. Pure.

The stable one is what last came to be served everywhere.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from lorafleet_operator.api.v1alpha1 import Revision

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lorafleet_operator.api.v1alpha1 import Decision, RolledBack
    from lorafleet_operator.course import Course
    from lorafleet_operator.facts import Facts
    from lorafleet_operator.world import EngineView


def stable_revision(facts: Facts) -> Revision | None:
    """Return what last came to be served everywhere: by the status, else what most engines serve."""
    stable = settled_content(facts)
    if stable is not None:
        return stable
    name = facts.adapter.served_name
    served = Counter(
        staged.fingerprint
        for view in facts.engines
        for entry in view.loaded(facts.key)
        if entry.published
        and entry.served_name == name
        and (staged := view.staged(entry.digest)) is not None
    )
    if not served:
        return None
    fingerprint = min(served, key=lambda each: (-served[each], each))
    return Revision(digest=digest_of(facts.engines, fingerprint), fingerprint=fingerprint)


def settled_content(facts: Facts) -> Revision | None:
    """Return what was last decided on for all engines, or came to be served by all."""
    decision, stable = decided(facts), facts.adapter.status.stable
    if decision is not None:
        return Revision(digest=decision.digest, fingerprint=decision.fingerprint)
    return stable if stable is not None and stable.fingerprint else None


def decided(facts: Facts) -> Decision | None:
    """Return what all engines come to serve, by this pass or by the status, None while it is open."""
    return facts.decided or facts.adapter.status.decided


def digest_of(engines: Iterable[EngineView], fingerprint: str) -> str:
    """Return the digest that most engines know the content by, "" if none does.

    Engines of one dtype agree; a pool of two dtypes has two digests for one source.
    """
    found = Counter(digest for view in engines if (digest := view.digest_of(fingerprint)))
    return min(found, key=lambda each: (-found[each], each), default="")


def fingerprint_of(engines: Iterable[EngineView], digest: str) -> str:
    """Return the fingerprint that a staged revision has, "" if it is staged nowhere."""
    for view in engines:
        staged = view.staged(digest)
        if staged is not None:
            return staged.fingerprint
    return ""


def own_revisions(facts: Facts) -> list[str]:
    """Return the digests that `spec.revision` may name, newest first."""
    status = facts.adapter.status
    stable = status.stable.digest if status.stable is not None else ""
    found = dict.fromkeys([status.digest, stable, *status.history])
    return [each for each in found if each]


def history(facts: Facts, digest: str, given_up: RolledBack | None) -> list[str]:
    """Return earlier revisions that are still staged somewhere, newest first.

    What was given up is none of them.
    """
    old = facts.adapter.status
    earlier = [old.digest, *old.history] if old.digest != digest else old.history
    bad = given_up.digest if given_up is not None else ""
    kept = [each for each in dict.fromkeys(earlier) if each and each not in (digest, bad)]
    kept = [each for each in kept if any(view.staged(each) for view in facts.engines)]
    return kept[: facts.adapter.spec.revision_history_limit]


def earlier(facts: Facts, course: Course) -> list[Revision]:
    """Return what engines keep staged for a rollback: the history, and until an update is over also
    what it replaces, whatever the limit says."""
    updating = course.stable is not None and course.stable.fingerprint != course.newest
    if not updating and course.decided is None and not facts.adapter.status.history:
        return []
    digest = digest_of(facts.engines, course.main) or facts.adapter.status.digest
    found = [
        Revision(digest=each, fingerprint=fingerprint_of(facts.engines, each))
        for each in history(facts, digest, course.given_up)
    ]
    if course.stable is not None and updating:
        found.append(course.stable)
    return found


def to_keep(view: EngineView, revisions: Iterable[Revision], serving: str) -> set[str]:
    """Return the digests of `revisions` on this engine, but for `serving`, which it keeps anyway."""
    found = {
        each.digest if view.staged(each.digest) else view.digest_of(each.fingerprint)
        for each in revisions
    }
    return found - {"", serving}


def kept(view: EngineView, adapter: str, keep: set[str]) -> set[str]:
    """Return which revisions of the adapter, or of `keep`, the engine keeps for a rollback."""
    staged = view.inventory.staged if view.inventory is not None else ()
    return {
        each.digest
        for each in staged
        if each.kept and (each.adapter == adapter or each.digest in keep)
    }
