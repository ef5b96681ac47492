"""The first step of a pass: the adapter's pool, its engines, and who else has the adapter."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from lorafleet_operator.world import engines_holding, pool_engines

if TYPE_CHECKING:
    from lorafleet_operator.facts import Facts
    from lorafleet_operator.fleet import Fleet

_FIRST_ANSWER_SECONDS: Final = 5.0


async def observe(facts: Facts, fleet: Fleet) -> None:
    """Gather the pool and the engines. Waits for links that have only just been opened.

    Right after a start nothing is known of any engine: deciding then would report every adapter
    as lost for a moment.
    """
    metadata = facts.adapter.metadata
    facts.pool = fleet.world.pool(metadata.namespace, facts.adapter.spec.pool_ref.name)
    if facts.pool is not None:
        await first_answers(fleet, {pod.uid for pod in fleet.world.members(facts.pool)})
    members = [] if facts.pool is None else pool_engines(facts.pool, fleet.world, fleet.links)
    others = engines_holding(facts.key, metadata.namespace, fleet.world, fleet.links, members)
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
