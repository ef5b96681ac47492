"""Whether an engine may be sent requests: one rule for readiness gates, Services and routes. Pure.

An engine has to be warm: it serves what it should have from the start. It stays warm for as long
as its vLLM runs, whatever is planned for it later. An engine that is marked for drain goes on
until other engines serve what it serves; one whose pod is being deleted, or that is about to be
recycled, is left out at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lorafleet_operator.api.v1alpha1 import EngineTraffic, WarmPolicy

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from lorafleet_operator.api.v1alpha1 import WarmSet

_SHOWN: Final = 5


@dataclass(frozen=True)
class Said:
    """What was last said of the engine where it survives the operator: its pod's condition."""

    open: bool
    reason: str
    message: str
    since: datetime
    """When `open` or `reason` last changed."""


@dataclass(frozen=True)
class EngineFacts:
    """One engine as it is now."""

    instance: str
    """Identifies the start of its vLLM, "" while nobody knows it."""
    in_contact: bool = True
    takes_orders: bool = True
    message: str = ""
    """Why it does not."""
    deleting: bool = False
    draining: bool = False
    recycling: bool = False
    missing: Sequence[str] = ()
    """Adapters that it should serve and does not."""
    kept_for: Sequence[str] = ()
    """Adapters that it serves and that engines which stay do not, or not all of them."""
    said: Said | None = None


def traffic(engine: EngineFacts, warm: WarmSet, now: datetime) -> tuple[EngineTraffic, str]:
    """Return the engine's state and a line for people that begins with its instance.

    Without contact nothing new is known: an operator that is cut off must not take a whole pool
    out of traffic.
    """
    state, text = _judge(engine, warm, now)
    return state, f"{_of(engine.instance)}{text}"


def is_about(said: Said, instance: str) -> bool:
    """Return whether it was said of this start of vLLM."""
    return said.message.startswith(_of(instance))


def may_answer(
    *, serves: bool, deleting: bool, draining: bool, recycling: bool, elsewhere: bool
) -> bool:
    """Return whether requests for one adapter may be sent to an engine.

    serves: it answers to the adapter's name now. elsewhere: an engine that stays does so too.
    """
    return serves and not deleting and not recycling and not (draining and elsewhere)


def _of(instance: str) -> str:
    return f"engine {instance.rpartition('/')[2] or '(none)'}: "


def _judge(engine: EngineFacts, warm: WarmSet, now: datetime) -> tuple[EngineTraffic, str]:
    if engine.deleting:
        return EngineTraffic.DELETING, "its pod is being deleted"
    if engine.recycling:
        return EngineTraffic.RECYCLING, "vLLM is about to be started again"
    if not engine.in_contact:
        return EngineTraffic.UNKNOWN, engine.message
    said = engine.said
    if engine.draining:
        if engine.takes_orders and engine.kept_for and (said is None or said.open):
            return EngineTraffic.DRAINING, f"serves {_few(engine.kept_for)} until others do"
        return EngineTraffic.DRAINED, "other engines have what it served"
    if said is not None and said.open and is_about(said, engine.instance) and engine.takes_orders:
        known = EngineTraffic.WARM_TIMED_OUT
        return (known if said.reason == known else EngineTraffic.WARM), "takes traffic"
    if engine.takes_orders and (warm.policy is WarmPolicy.NONE or not engine.missing):
        return EngineTraffic.WARM, "serves what it should have from the start"
    lacks = f"lacks {_few(engine.missing)}" if engine.takes_orders else engine.message
    waited = said is not None and said.reason == EngineTraffic.WARMING
    if waited and said is not None and engine.takes_orders:
        seconds = (now - said.since).total_seconds()
        if is_about(said, engine.instance) and seconds >= warm.timeout_seconds:
            return EngineTraffic.WARM_TIMED_OUT, f"{lacks} after {warm.timeout_seconds} s"
    return EngineTraffic.WARMING, lacks or "vLLM is starting"


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(sorted(names)[:_SHOWN]) + more
