"""Engines that start, go and are started again: from what is seen of a pool to who takes traffic.

Part of the pool's pass. What has to outlive the operator stands at the API server: in the pods'
condition lorafleet.dev/warm and in the pool's status.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from lorafleet_operator import metrics
from lorafleet_operator.api.names import POOL_KIND
from lorafleet_operator.api.v1alpha1 import EngineTraffic
from lorafleet_operator.cluster.writes import post_event, set_warm
from lorafleet_operator.placement import Policy
from lorafleet_operator.recycling import Recycled, go_on
from lorafleet_operator.traffic import EngineFacts, is_about, traffic

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from lorafleet_operator.api.v1alpha1 import EnginePool, Recycling, SafePoint
    from lorafleet_operator.fleet import Fleet
    from lorafleet_operator.pool_planner import PoolPlanner
    from lorafleet_operator.world import EngineView

_LOG: Final = logging.getLogger(__name__)
_LOOK_SECONDS: Final = 1.0
"""How often an engine is looked at that is waited for."""


@dataclass(frozen=True)
class Life:
    """Who takes traffic, and what is said of recycling."""

    states: Mapping[str, tuple[EngineTraffic, str]] = field(default_factory=dict)
    """By pod name."""
    recycled: Recycled = field(default_factory=Recycled)


class Served:
    """Which adapters each engine answers to; engines are looked through when they are asked about."""

    def __init__(self, views: Sequence[EngineView]) -> None:
        self._views = {view.pod.name: view for view in views}
        self._found: dict[str, frozenset[str]] = {}

    def on(self, pod_name: str) -> frozenset[str]:
        """Return the adapters of one engine, none if it takes no orders or is not in the pool."""
        if pod_name not in self._found:
            view = self._views.get(pod_name)
            there = view.inventory if view is not None and view.takes_orders else None
            entries = there.loaded if there is not None else ()
            self._found[pod_name] = frozenset(e.adapter for e in entries if e.published)
        return self._found[pod_name]


async def keep_engines(
    pool: EnginePool, views: Sequence[EngineView], fleet: Fleet, now: datetime
) -> Life:
    """Set the pods' conditions, go on with the engine that is recycled, or choose one.

    A pod of several pools is cared for by the first of them alone.
    """
    planner = _settled(pool, fleet)
    name = pool.metadata.name
    views = [
        view
        for view in views
        if (keeper := fleet.world.keeper(view.pod)) is not None and keeper.metadata.name == name
    ]
    going = pool.status.recycling
    served = Served(views)
    states = {}
    for view in views:
        facts = engine_facts(view, planner, served, going)
        states[view.pod.name] = traffic(facts, pool.spec.warm, now)
    await asyncio.gather(
        *(_tell(pool, view, *states[view.pod.name], fleet, now) for view in views if view.pod.gated)
    )
    waited_for = any(state is EngineTraffic.WARMING for state, _ in states.values())
    plain = {name: state for name, (state, _) in states.items()}
    recycled = await go_on(pool, views, plain, fleet, now)
    counts = Counter(state.value for state in plain.values())
    metrics.POOLS.show(
        pool.key,
        {each: counts[each] for each in EngineTraffic},
        recycled.count,
        len(recycled.due),
        {view.pod.name: not view.problem for view in views},
    )
    fleet.safe_points.show(pool.key, recycled)
    if recycled.event is not None:
        await _event(pool, fleet, *recycled.event)
    if (pool.status.safe_point is None) != (recycled.safe_point is None):
        await _event(pool, fleet, *_opened_or_closed(recycled.safe_point))
    if waited_for or recycled.going is not None or recycled.safe_point is not None:
        fleet.look_at_pool_in(pool.key, _LOOK_SECONDS)
    _wake_beside(pool, planner, fleet)
    return Life(states, recycled)


def engine_facts(
    view: EngineView,
    planner: PoolPlanner,
    served: Served,
    going: Recycling | None,
) -> EngineFacts:
    """Return what is known of the engine."""
    name, pod = view.pod.name, view.pod
    said = pod.warm
    settled = said is not None and said.open and is_about(said, view.instance)
    waits = view.takes_orders and not settled and (pod.gated or _comes_back(view, going))
    return EngineFacts(
        instance=view.instance,
        in_contact=not view.problem,
        takes_orders=view.takes_orders,
        message=view.message,
        deleting=pod.terminating,
        draining=view.draining,
        recycling=view.is_recycled(going),
        missing=_missing(name, planner, served.on(name)) if waits else (),
        kept_for=_kept_for(name, planner, served) if view.draining else (),
        said=said,
    )


def _settled(pool: EnginePool, fleet: Fleet) -> PoolPlanner:
    """Return the pool's plan as the facts are now; adapters that get other engines are woken."""
    planner = fleet.planner(pool.key)
    planner.look_at_engines(pool, fleet.world, fleet.links, fleet.settings.engine_grace_seconds)
    planner.look_at_adapters(fleet.world.adapters.get(pool.key) or (), fleet.barred)
    planner.settle(fleet.wakeups)
    return planner


def _comes_back(view: EngineView, going: Recycling | None) -> bool:
    return going is not None and going.pod_name == view.pod.name


def _missing(name: str, planner: PoolPlanner, served: frozenset[str]) -> list[str]:
    """Return the adapters that were chosen for the engine, that nothing is known to keep from it, and
    that are not served there."""
    carrier = planner.plan.board.carriers.get(name)
    demands = [planner.plan.entries[key].demand for key in (carrier.adapters if carrier else ())]
    return sorted(
        each.key
        for each in demands
        if each.key not in served and not each.held_back and name not in each.refused
    )


def _kept_for(name: str, planner: PoolPlanner, served: Served) -> list[str]:
    """Return what the engine serves and the engines that were chosen instead do not, or not all."""
    found = []
    for key in served.on(name):
        entry = planner.plan.entries.get(key)
        if entry is None or entry.demand.policy is Policy.ON_DEMAND:
            continue
        if not entry.chosen or any(key not in served.on(each) for each in entry.chosen):
            found.append(key)
    return sorted(found)


async def _tell(
    pool: EnginePool,
    view: EngineView,
    state: EngineTraffic,
    message: str,
    fleet: Fleet,
    now: datetime,
) -> None:
    """Write the pod's condition if it says something else by now."""
    old = view.pod.warm
    head = message.partition(": ")[0]
    said = old and (old.open, old.reason, old.message.partition(": ")[0])
    if state is EngineTraffic.UNKNOWN or said == (state.open, state.value, head):
        return
    _LOG.info("%s: %s: %s", view.pod.key, state.value, message)
    written = await set_warm(
        fleet.api, view.pod, open_=state.open, reason=state.value, message=message, now=now
    )
    if written and state is EngineTraffic.WARM_TIMED_OUT:
        await _event(pool, fleet, state.value, f"{view.pod.name}: {message}", "Warning")


async def _event(
    pool: EnginePool,
    fleet: Fleet,
    reason: str,
    message: str,
    type_: Literal["Normal", "Warning"] = "Normal",
) -> None:
    metadata = {"metadata": pool.metadata.model_dump()}
    await post_event(fleet.api, POOL_KIND, metadata, type_=type_, reason=reason, message=message)


def _opened_or_closed(now: SafePoint | None) -> tuple[str, str]:
    if now is None:
        return "SafePointClosed", "no other engine is recycled before the next one"
    return "SafePointOpened", f"by {', '.join(now.opened_by)}: engines that are due are recycled"


def _wake_beside(pool: EnginePool, planner: PoolPlanner, fleet: Fleet) -> None:
    """Wake the adapters of an engine that is closed or opened by recycling, once."""
    going = pool.status.recycling
    closed = going.pod_name if going is not None else ""
    if closed != planner.recycling:
        for name in filter(None, (closed, planner.recycling)):
            fleet.wake_beside(pool.key, name)
        planner.recycling = closed
