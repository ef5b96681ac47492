"""When an engine's vLLM is started again to free host memory, and how far that has come. Pure.

One engine of a pool at a time, and only while enough others take traffic. What is going on stands
in the pool's status, so that it is seen, and so that another operator goes on from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from lorafleet_operator.api.v1alpha1 import RecycleRule, Recycling

SETTLE_SECONDS: Final = 5
"""How long routers get to hear that the engine takes no traffic; less if drainSeconds is less."""
_MIB: Final = 1 << 20


@dataclass(frozen=True)
class Candidate:
    """One engine of the pool as it is now."""

    pod_name: str
    pod_uid: str
    instance: str
    open: bool = True
    """Whether it takes traffic."""
    takes_orders: bool = True
    plugin: bool = True
    starts_again: bool = True
    """Whether its container is started again when vLLM ends."""
    loads: int = 0
    growth: int | None = None
    """Bytes by which a worker's own memory grew with each load, None while nobody can say."""
    in_flight: int = 0


class Step(Enum):
    """What comes next for the engine that is being recycled."""

    WAIT = "wait"
    ASK = "ask"  # vLLM to end if nothing runs
    FORCE = "force"  # vLLM to end
    DROP = "drop"  # it is not to be, or cannot be, recycled any more
    RETURNED = "returned"


def why_due(engine: Candidate, rule: RecycleRule) -> str:
    """Return why the engine is to be started again, "" if it is not."""
    if rule.max_loads is not None and engine.loads > rule.max_loads:
        return f"{engine.loads} loads are more than {rule.max_loads}"
    limit = rule.growth_bytes
    if limit is not None and engine.growth is not None and engine.growth > limit:
        grown, most = engine.growth / _MIB, limit / _MIB
        return f"grew by {grown:.2f} MiB of host memory with each load, more than {most:.2f}"
    return ""


def choose(engines: Sequence[Candidate], rule: RecycleRule | None) -> tuple[Candidate | None, str]:
    """Return the engine to recycle now and why, or None and what a due one waits for.

    Only for a pool of which no engine is being recycled. Engines are looked at by pod name.
    """
    waits = ""
    for engine in sorted(engines, key=lambda each: each.pod_name):
        reason = why_due(engine, rule) if rule is not None and engine.takes_orders else ""
        if rule is None or not reason:
            continue
        problem = _problem(engine, engines, rule)
        if not problem:
            return engine, reason
        waits = waits or f"{engine.pod_name}: {reason}; {problem}"
    return None, waits


def next_step(
    going: Recycling,
    engines: Sequence[Candidate],
    rule: RecycleRule | None,
    now: datetime,
    *,
    warm_seconds: int,
) -> Step:
    """Return what comes next for the engine of `going`.

    Its vLLM has ended when the instance is another one or none. It is back when it takes traffic,
    or after drainSeconds and `warm_seconds` when it takes orders.
    """
    engine = next((each for each in engines if each.pod_name == going.pod_name), None)
    if engine is None or engine.pod_uid != going.engine.rpartition("/")[0]:
        return Step.DROP  # another pod of that name has nothing to do with it
    waited = now - going.since
    drain = rule.drain_seconds if rule is not None else 0
    if engine.instance != going.engine:
        overdue = waited >= timedelta(seconds=drain + warm_seconds)
        back = engine.instance and (engine.open or (engine.takes_orders and overdue))
        return Step.RETURNED if back else Step.WAIT
    if rule is None or _others(engine, engines) < rule.min_ready_engines:
        return Step.DROP
    if waited >= timedelta(seconds=drain):
        return Step.FORCE
    settling = waited < timedelta(seconds=min(drain, SETTLE_SECONDS))
    return Step.WAIT if settling or engine.in_flight else Step.ASK


def _problem(engine: Candidate, engines: Sequence[Candidate], rule: RecycleRule) -> str:
    if not engine.plugin:
        return "without the plugin nobody can end its vLLM"
    if not engine.starts_again:
        return "the pod's restartPolicy is not Always"
    others = _others(engine, engines)
    if others < rule.min_ready_engines:
        return f"{others} other engines take traffic, {rule.min_ready_engines} have to"
    return ""


def _others(engine: Candidate, engines: Sequence[Candidate]) -> int:
    return sum(each.open for each in engines if each.pod_name != engine.pod_name)
