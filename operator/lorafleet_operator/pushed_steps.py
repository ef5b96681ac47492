"""Which of the trainer's steps each engine serves. Pure.

The spec names the newest pushed revision alone. What engines serve of earlier ones is told by the
adapter's own status, so that an operator that has just started knows it too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lorafleet_operator.api.v1alpha1 import PushedStep

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lorafleet_operator.facts import Facts

_MOST: Final = 10


def pushed(facts: Facts) -> list[PushedStep]:
    """Return the steps of the newest push and of earlier ones that an engine may still serve, those
    that are loaded first.

    An engine that has not answered this operator yet may serve any of them.
    """
    push = facts.adapter.spec.source.push
    if push is None:
        return []
    found = list(facts.adapter.status.pushed)
    if push.revision and facts.pushed_content:
        newest = PushedStep(
            revision=push.revision, fingerprint=facts.pushed_content, step=push.step
        )
        found = [newest, *(each for each in found if each.fingerprint != newest.fingerprint)]
    known = all(view.inventory is not None for view in facts.engines)
    staged, loaded = set[str](), set[str]()
    for view in facts.engines:
        served = {entry.digest for entry in view.loaded(facts.key)}
        for each in view.inventory.staged if view.inventory is not None else ():
            (loaded if each.digest in served else staged).add(each.fingerprint)
    kept = [each for each in found[1:] if each.fingerprint in loaded]
    kept += [
        each
        for each in found[1:]
        if each.fingerprint not in loaded and (not known or each.fingerprint in staged)
    ]
    return [*found[:1], *kept][:_MOST]


def step_of(steps: Iterable[PushedStep], fingerprint: str) -> int | None:
    """Return the step of a content, None if it is not known."""
    return next((each.step for each in steps if each.fingerprint == fingerprint), None)
