"""When an engine's vLLM is started again to free host memory, and how far that has come. Pure.

One engine of a pool at a time, and only while enough others take traffic; of some pools only while
a trainer says that it is a good moment (safe_points.py). What is going on stands in the pool's
status, so that it is seen, and so that another operator goes on from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Final

from lorafleet_operator.api.v1alpha1 import RecycleWhen

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
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
    drained: bool = False
    """Whether it is to take none, for somebody has marked it for drain."""
    takes_orders: bool = True
    plugin: bool = True
    starts_again: bool = True
    """Whether its container is started again when vLLM ends."""
    loads: int = 0
    growth: int | None = None
    """Bytes by which a worker's own memory grew with each load, None while nobody can say."""
    host_bytes: int = 0
    """Own memory of all its workers."""
    in_flight: int = 0


@dataclass(frozen=True)
class Due:
    """Why an engine is to be recycled, and since when it is."""

    why: str
    since: datetime


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


def all_due(
    engines: Sequence[Candidate],
    rule: RecycleRule | None,
    before: Mapping[str, datetime],
    now: datetime,
) -> dict[str, Due]:
    """Return the engines that are due, by pod name. before: since when some are, by instance."""
    found = {}
    for engine in engines if rule is not None else ():
        if rule is not None and engine.instance and (why := why_due(engine, rule)):
            found[engine.pod_name] = Due(why, before.get(engine.instance, now))
    return found


def choose(
    engines: Sequence[Candidate],
    rule: RecycleRule | None,
    due: Mapping[str, Due],
    now: datetime,
    *,
    safe_point: bool = False,
) -> tuple[Candidate | None, str]:
    """Return the engine to recycle now and why, or None and what a due one waits for.

    Only for a pool of which no engine is being recycled. Engines are looked at by pod name.
    safe_point: whether one is open.
    """
    waits = []
    for engine in sorted(engines, key=lambda each: each.pod_name):
        found = due.get(engine.pod_name)
        if rule is None or found is None or not engine.takes_orders:
            continue
        problem = cannot_be(engine)
        if not problem and not safe_point and _waits_for_one(found, rule, now):
            problem = "waits for a safe point"
        problem = problem or _too_few(engine, engines, rule)
        if not problem:
            return engine, found.why
        waits.append(f"{engine.pod_name}: {found.why}; {problem}")
    more = f" (and {len(waits) - 1} more)" if len(waits) > 1 else ""
    return None, waits[0] + more if waits else ""


def next_step(
    going: Recycling,
    engines: Sequence[Candidate],
    rule: RecycleRule | None,
    now: datetime,
    *,
    warm_seconds: int,
) -> Step:
    """Return what comes next for the engine of `going`.

    Its vLLM has ended when the instance is another one or none. It is back when it takes traffic
    or is drained, or after drainSeconds and `warm_seconds` when it takes orders.
    """
    engine = next((each for each in engines if each.pod_name == going.pod_name), None)
    if engine is None or engine.pod_uid != going.engine.rpartition("/")[0]:
        return Step.DROP  # another pod of that name has nothing to do with it
    waited = now - going.since
    drain = rule.drain_seconds if rule is not None else 0
    if engine.instance != going.engine:
        overdue = waited >= timedelta(seconds=drain + warm_seconds)
        settled = engine.open or engine.drained or (engine.takes_orders and overdue)
        back = engine.instance and settled
        return Step.RETURNED if back else Step.WAIT
    if rule is None or _others(engine, engines) < rule.min_ready_engines:
        return Step.DROP
    if waited >= timedelta(seconds=drain):
        return Step.FORCE
    settling = waited < timedelta(seconds=min(drain, SETTLE_SECONDS))
    return Step.WAIT if settling or engine.in_flight else Step.ASK


def remaining(engines: Sequence[Candidate], due: Mapping[str, Due]) -> list[Candidate]:
    """Return the engines that are still to be recycled, less those that cannot be at any moment."""
    return [
        each
        for each in engines
        if each.pod_name in due and each.takes_orders and not cannot_be(each)
    ]


def cannot_be(engine: Candidate) -> str:
    """Return why the engine cannot be recycled at any moment, "" if it can."""
    if not engine.plugin:
        return "without the plugin nobody can end its vLLM"
    if not engine.starts_again:
        return "the pod's restartPolicy is not Always"
    return ""


def _waits_for_one(due: Due, rule: RecycleRule, now: datetime) -> bool:
    """Return whether a due engine is not recycled before there is a safe point."""
    if rule.when is not RecycleWhen.SAFE_POINT:
        return False
    longest = rule.max_wait_seconds
    return longest is None or now - due.since < timedelta(seconds=longest)


def _too_few(engine: Candidate, engines: Sequence[Candidate], rule: RecycleRule) -> str:
    others = _others(engine, engines)
    if others < rule.min_ready_engines:
        return f"{others} other engines take traffic, {rule.min_ready_engines} have to"
    return ""


def _others(engine: Candidate, engines: Sequence[Candidate]) -> int:
    return sum(each.open for each in engines if each.pod_name != engine.pod_name)
