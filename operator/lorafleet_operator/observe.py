"""The first step of a pass: the adapter's pool, its engines, and who else has the adapter."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from lorafleet_operator.permissions import refusal
from lorafleet_operator.world import engine_view, engines_outside

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lorafleet_operator.cluster.reads import EnginePod
    from lorafleet_operator.facts import Facts
    from lorafleet_operator.fleet import Fleet
    from lorafleet_operator.world import EngineView

_FIRST_ANSWER_SECONDS: Final = 5.0


async def observe(facts: Facts, fleet: Fleet) -> None:
    """Gather the pool and its engines: those that the adapter has or had, and one of each profile.

    Waits for links that have only just been opened.

    Right after a start nothing is known of any engine: deciding then would report every adapter
    as lost for a moment.
    """
    metadata, world, links = facts.adapter.metadata, fleet.world, fleet.links
    adapter = facts.adapter
    facts.forbidden = refusal(world, metadata.namespace, adapter.pool_key, adapter.served_name)
    if facts.forbidden is None:
        facts.pool = world.pool(adapter.pool_key)
    members: list[EngineView] = []
    of_pool: Iterable[EnginePod] = ()
    if facts.pool is not None:
        planner, grace = fleet.planner(facts.pool.key), fleet.settings.engine_grace_seconds
        planner.look_at_engines(facts.pool, world, links, grace)
        if await first_answers(fleet, planner.members.values()):
            planner.look_at_engines(facts.pool, world, links, grace)
        of_pool = planner.members.values()
        refusing = fleet.memory.refusing(metadata.uid)
        members = [engine_view(pod, links) for pod in planner.worth_a_look(facts.adapter, refusing)]
    elsewhere = fleet.holders.loaded_on(facts.key) - {view.uid for view in members}
    if elsewhere:
        elsewhere -= {pod.uid for pod in of_pool}
    others = engines_outside(elsewhere, world, links) if elsewhere else []
    facts.engines = [*members, *others]
    if adapter.spec.rollout.atomic or adapter.status.decided is not None:
        named = {entry.pod_name for entry in adapter.status.engines}
        facts.awaited = frozenset(
            view.uid
            for view in members
            if view.pod.name in named
            and not view.takes_orders
            and not view.leaving
            and view.away_for < fleet.settings.engine_grace_seconds
        )
    await _count_requests(facts, fleet)


async def _count_requests(facts: Facts, fleet: Fleet) -> None:
    """Ask the engines that try a revision for their figures: sidecars do not tell of each request."""
    trial = facts.adapter.status.canary
    if trial is None or trial.promoted:
        return
    asked = [
        link
        for view in facts.engines
        if _has(view, facts.key, trial.fingerprint)
        and (link := fleet.links.get(view.uid)) is not None
    ]
    # One that does not answer is without contact from here on: the pass sees that.
    await asyncio.gather(*(link.refresh() for link in asked), return_exceptions=True)
    facts.engines = [
        engine_view(view.pod, fleet.links, member=view.member) for view in facts.engines
    ]


def _has(view: EngineView, adapter: str, fingerprint: str) -> bool:
    digest = view.digest_of(fingerprint)
    return any(entry.digest == digest for entry in view.loaded(adapter))


async def first_answers(fleet: Fleet, pods: Iterable[EnginePod]) -> bool:
    """Wait until the sidecars of these pods have answered or failed to, at most 5 s.

    Returns whether there was anybody to wait for.
    """
    fleet.fresh = [link for link in fleet.fresh if not link.tried.is_set()]
    if not fleet.fresh:
        return False
    uids = {pod.uid for pod in pods}
    waiting = [link for link in fleet.fresh if link.endpoint.uid in uids]
    try:
        async with asyncio.timeout(_FIRST_ANSWER_SECONDS):
            for (
                link
            ) in waiting:  # one after the other: a task for each engine, for each pass, is many
                await link.tried.wait()
    except TimeoutError:
        return True
    return bool(waiting)
