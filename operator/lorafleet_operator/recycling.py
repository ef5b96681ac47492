"""Carrying out what `recycle.py` decides: one engine's vLLM ended, and let in again when it is back.

What is going on stands in the pool's status before anything is done about it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lorafleet.errors import LorafleetError

from lorafleet_operator import recycle
from lorafleet_operator.api.v1alpha1 import EngineHealth, EngineTraffic, Recycling
from lorafleet_operator.recycle import Candidate, Step
from lorafleet_operator.safe_points import safe_point

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from lorafleet_operator.api.v1alpha1 import EnginePool, SafePoint
    from lorafleet_operator.fleet import Fleet
    from lorafleet_operator.recycle import Due
    from lorafleet_operator.world import EngineView

_STEP_BYTES: Final = 64 << 10
_ENOUGH_LOADS: Final = 16
"""Loads after the first ones before their growth is judged: memory comes in pieces."""


@dataclass(frozen=True)
class Recycled:
    """What the pool's status says of recycling, and what is worth an Event."""

    going: Recycling | None = None
    count: int = 0
    last: str = ""
    message: str = ""
    due: Mapping[str, Due] = field(default_factory=dict)
    """By pod name."""
    engines: Sequence[Candidate] = ()
    """Of the pool, as they were looked at; none where no rule asks for it and nobody is told."""
    safe_point: SafePoint | None = None
    event: tuple[str, str] | None = None
    """Reason and message."""


def growth(view: EngineView) -> int | None:
    """Return the most bytes by which a worker's own memory grew with each load since the first.

    In steps: what wanders all the time must not be news each time.
    """
    found = [
        (worker.private_host_bytes - worker.baseline_host_bytes)
        // (worker.loads - worker.baseline_loads)
        // _STEP_BYTES
        * _STEP_BYTES
        for worker in (view.inventory.workers if view.inventory else ())
        if worker.baseline_host_bytes and worker.loads - worker.baseline_loads >= _ENOUGH_LOADS
    ]
    return max(found, default=None)


def loads(view: EngineView) -> int:
    """Return the adapters that a worker has loaded since vLLM started."""
    return max((w.loads for w in (view.inventory.workers if view.inventory else ())), default=0)


def host_bytes(view: EngineView) -> int:
    """Return the memory of all workers that is shared with no file."""
    return sum(w.private_host_bytes for w in (view.inventory.workers if view.inventory else ()))


async def go_on(
    pool: EnginePool,
    views: Sequence[EngineView],
    states: Mapping[str, EngineTraffic],
    fleet: Fleet,
    now: datetime,
) -> Recycled:
    """Go on with the engine that is being recycled, or choose one."""
    rule, status, going = pool.spec.recycle, pool.status, pool.status.recycling
    accounts = fleet.safe_points.of(pool.key)
    asked = rule is not None or going is not None or accounts  # else nobody is told of engines
    engines = [_candidate(view, states[view.pod.name]) for view in views] if asked else []
    due = recycle.all_due(engines, rule, _due_since(pool, engines), now.replace(microsecond=0))
    open_ = safe_point(status.safe_point, accounts, now)
    done, last, waits = status.recycles, status.last_recycle, ""
    event = None
    if going is not None:
        step = recycle.next_step(
            going, engines, rule, now, warm_seconds=pool.spec.warm.timeout_seconds
        )
        if step in (Step.ASK, Step.FORCE):
            waits = await _end(going, views, fleet, force=step is Step.FORCE)
        elif step is Step.RETURNED:
            done, last = done + 1, f"{going.pod_name}: {going.message}"
            event = "Recycled", f"{last}; it is back"
            going = None
        elif step is Step.DROP:
            going = None
    elif rule is not None:
        chosen, text = recycle.choose(engines, rule, due, now, safe_point=open_ is not None)
        waits = "" if chosen else text
        if chosen is not None:
            going = Recycling(
                pod_name=chosen.pod_name,
                engine=chosen.instance,
                since=now.replace(microsecond=0),
                message=text,
            )
            event = "Recycling", f"{chosen.pod_name}: {text}"
    return Recycled(going, done, last, waits, due, engines, open_, event)


def _due_since(pool: EnginePool, engines: Sequence[Candidate]) -> dict[str, datetime]:
    """Return since when engines are due by what the status says, by instance."""
    said = {each.pod_name: each for each in pool.status.engines}
    found = {}
    for engine in engines:
        entry = said.get(engine.pod_name)
        if entry is not None and entry.engine == engine.instance[-64:] and entry.recycle_due_since:
            found[engine.instance] = entry.recycle_due_since
    return found


def _candidate(view: EngineView, state: EngineTraffic) -> Candidate:
    loaded = view.inventory.loaded if view.inventory else ()
    return Candidate(
        pod_name=view.pod.name,
        pod_uid=view.uid,
        instance=view.instance[-128:],
        open=state.open,
        drained=state is EngineTraffic.DRAINED,
        takes_orders=view.takes_orders,
        plugin=view.health is EngineHealth.READY,
        starts_again=view.pod.starts_again,
        loads=loads(view),
        growth=growth(view),
        host_bytes=host_bytes(view),
        in_flight=sum(entry.in_flight for entry in loaded),
    )


async def _end(going: Recycling, views: Sequence[EngineView], fleet: Fleet, *, force: bool) -> str:
    """Ask for the end of the engine's vLLM; return what keeps it from ending, "" if nothing does."""
    view = next(each for each in views if each.pod.name == going.pod_name)
    link = fleet.links.get(view.uid)
    if link is None or view.inventory is None:
        return f"{going.pod_name}: {view.message}"
    try:
        await link.client.restart_engine(
            view.inventory.engine_instance, force=force, seconds=fleet.settings.load_timeout_seconds
        )
    except LorafleetError as error:
        return f"{going.pod_name}: {error}"
    return ""
