"""The first step of a pass: the adapter's pool, its engines, and who else has the adapter."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from lorafleet_operator.world import engine_view, engines_holding

if TYPE_CHECKING:
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
    facts.pool = world.pool(metadata.namespace, facts.adapter.spec.pool_ref.name)
    members: list[EngineView] = []
    known: set[str] = set()
    if facts.pool is not None:
        planner, grace = fleet.planner(facts.pool.key), fleet.settings.engine_grace_seconds
        planner.look_at_engines(facts.pool, world, links, grace)
        known = {pod.uid for pod in planner.members.values()}
        await first_answers(fleet, known)
        planner.look_at_engines(facts.pool, world, links, grace)
        refusing = fleet.memory.refusing(metadata.uid)
        members = [engine_view(pod, links) for pod in planner.worth_a_look(facts.adapter, refusing)]
    others = engines_holding(facts.key, metadata.namespace, world, links, known)
    facts.engines = [*members, *others]


async def first_answers(fleet: Fleet, uids: set[str]) -> None:
    """Wait until the sidecars of these pods have answered or failed to, at most 5 s."""
    fresh = [link for link in fleet.links.all() if link.endpoint.uid in uids]
    waiting = [link.tried.wait() for link in fresh if not link.tried.is_set()]
    if waiting:
        try:
            async with asyncio.timeout(_FIRST_ANSWER_SECONDS):
                await asyncio.gather(*waiting)
        except TimeoutError:
            return
