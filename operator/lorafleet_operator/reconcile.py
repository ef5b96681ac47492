"""One pass over one adapter: look at everything, decide, act, report.

Nothing continues from an earlier pass. What is staged, loaded and published is what the engines
say; what is wanted is what the manifest and its source say. A pass that is cut off anywhere
leaves a state that the next one goes on from.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from lorafleet_operator import atomic, metrics
from lorafleet_operator.crashpoint import crash_at
from lorafleet_operator.facts import Facts
from lorafleet_operator.first_requests import answer
from lorafleet_operator.hold_back import hold_back
from lorafleet_operator.observe import observe
from lorafleet_operator.orders import hand_over, load, make_room, publish, retire, stage
from lorafleet_operator.place import place
from lorafleet_operator.report import report
from lorafleet_operator.resolve import preflight, resolve
from lorafleet_operator.route import route

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lorafleet_operator.api.v1alpha1 import LoRAAdapter
    from lorafleet_operator.fair import Turn
    from lorafleet_operator.fleet import Fleet
    from lorafleet_operator.report import Report


async def reconcile(
    adapter: LoRAAdapter,
    created: str,
    fleet: Fleet,
    announce: Callable[[Report], Awaitable[None]],
    turn: Turn | None = None,
) -> Report:
    """Bring the fleet one pass nearer to what `adapter` wants; return what to say about it.

    `announce` is told what there is to say before a long transfer. `turn` is given back when the
    pass needs the source no more.
    """
    facts = Facts(adapter, created)
    await observe(facts, fleet)  # the pool, its engines, and who else has the adapter
    async with fleet.readers.of(adapter, turn) as reader:
        await resolve(facts, reader, fleet)  # which content the source holds
        await preflight(facts, reader, fleet)  # whether the engines could take it
        place(facts, fleet)  # which of them should
        hold_back(facts, fleet)  # whether its tenant may load anything now
        await route(facts, fleet)  # requests to those that serve it, before what takes long
        say = partial(announce_now, facts, announce)
        if not facts.paused:
            await give_up(facts, say)  # by what a trial's engines say
            await stage(facts, reader, fleet, say)  # its bytes into their arenas
        if not facts.unread and (facts.source_error is None or reader.secret is not None):
            fleet.secrets.follow(facts.key, reader.secret if facts.source_error else None)
    if not facts.paused:
        await hand_over(facts, fleet)  # names that are another's now
        await load(facts, fleet)  # beside the revision that they serve
        await give_up(facts, say)  # by what an engine has refused
        await decide(facts, say)  # where all engines change at once or not at all
        await publish(facts, fleet)  # the served name moves, once all have it
        await route(facts, fleet)  # to the new ones, and not to those that are about to let go
        await make_room(facts, fleet)  # where two revisions do not fit
        await retire(facts, fleet)  # what nobody wants any more
    said = report(facts)
    if said.status.canary != facts.adapter.status.canary:  # it decides who gets which requests
        await route(facts, fleet, said.status)
    answer(facts, fleet, retry=said.retry)  # requests that wait for what is not coming
    return said


async def give_up(facts: Facts, say: Callable[[], Awaitable[None]]) -> None:
    """Say that the newest content is given up before anything is done about it.

    What it was judged by goes with the revision: nobody would know after an interruption.
    """
    found = facts.course().given_up
    if facts.given_up is None and found not in (None, facts.adapter.status.rolled_back):
        facts.given_up = found
        metrics.ROLLBACKS.labels(found.reason).inc()
        await say()


async def decide(facts: Facts, say: Callable[[], Awaitable[None]]) -> None:
    """Say that all engines come to serve the newest content, once each has it, before a name moves."""
    course = facts.course()
    if course.unanimous and course.rollout is not None and facts.may_act:
        facts.decided = atomic.decide(course.rollout, datetime.now(UTC))
        await say()
        crash_at("decided")


async def announce_now(facts: Facts, announce: Callable[[Report], Awaitable[None]]) -> None:
    """Say what is known in the middle of a pass."""
    await announce(report(facts))
