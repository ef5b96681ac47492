"""What a loop runs: one pass over one object of the API server, and what is written of it."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from contextlib import suppress
from functools import partial
from sys import intern
from typing import TYPE_CHECKING, Any, Final

from lorafleet_operator import clock, metrics
from lorafleet_operator.api import names
from lorafleet_operator.api.conditions import ConditionType
from lorafleet_operator.api.meta import Condition
from lorafleet_operator.api.v1alpha1 import EnginePool, LoRAAdapter
from lorafleet_operator.catching_up import caught_up
from lorafleet_operator.cluster import finalizer
from lorafleet_operator.cluster.requests import NoAnswer
from lorafleet_operator.cluster.writes import post_event
from lorafleet_operator.crashpoint import crash_at
from lorafleet_operator.deletion import let_go
from lorafleet_operator.fair import Turn
from lorafleet_operator.permissions import refusal
from lorafleet_operator.placement import displaced_from, over_quota_on
from lorafleet_operator.pool_pass import reconcile_pool
from lorafleet_operator.reconcile import reconcile
from lorafleet_operator.report import failed, transitions
from lorafleet_operator.rounds import Outcome
from lorafleet_operator.route import withdraw
from lorafleet_operator.term import TermOver

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lorafleet_operator.api.v1alpha1 import LoRAAdapterStatus
    from lorafleet_operator.fleet import Fleet
    from lorafleet_operator.report import Report

_LOG: Final = logging.getLogger(__name__)
_DELETION_GOES_ON: Final = Outcome(well=True, interval=2.0)
_TRIAL_LOOKS: Final = 20
"""How often the figures of a revision on trial are looked at: each look may be a write."""
_TRIAL_SECONDS: Final = (0.5, 15.0)
"""Least and most seconds between two of them."""
_UNDER_WAY: Final = ("canary", "rollout", "decided", "draining")
"""Parts of a status that are there while something is."""


async def adapter_pass(uid: str, place: Turn, fleet: Fleet) -> Outcome | None:
    """Look at one adapter as it is now: reconcile it, or let it go. `place`: see Rounds."""
    body = fleet.bodies.get(uid)
    if body is None:
        return None
    body = await caught_up(body, fleet)
    if fleet.world.gone(uid) or body["metadata"].get("deletionTimestamp"):
        try:
            return await deletion_pass(body, fleet)
        except TermOver:
            raise
        except NoAnswer as error:
            _LOG.warning("%s: the deletion waits: %s", body["metadata"]["name"], error)
            return _DELETION_GOES_ON
        except Exception as error:
            # Tried again soon however often it fails: an object that cannot go blocks others.
            metrics.RECONCILE_ERRORS.labels(type(error).__name__).inc()
            _LOG.exception("%s: the deletion failed", body["metadata"]["name"])
            return _DELETION_GOES_ON
    turn = _turn(body, fleet)
    try:
        if _will_look(body, fleet):
            # Its source will be read: thousands that wait for that should hold nothing meanwhile.
            del body
            place.give_back()
            await turn.take()
            body = fleet.bodies.get(uid)
        if body is None or fleet.world.gone(uid):
            return Outcome(well=True, interval=0.0)
        if not finalizer.is_held(body):
            fleet.bodies.answered(await finalizer.hold(fleet.api, names.ADAPTER_PLURAL, body))
            body = fleet.bodies.newest(body)
        well = await _reconciled(turn, body, fleet)
    except finalizer.Overtaken:
        return Outcome(well=False, interval=0.0)
    finally:
        turn.give_back()
    return Outcome(well, adapter_interval(fleet.bodies.newest(body), fleet))


def _turn(body: Mapping[str, Any], fleet: Fleet) -> Turn:
    """Return the adapter's turn at its source. Who is new does not stand behind thousands that only
    look again: those are a side of their own."""
    metadata = body["metadata"]
    known = fleet.memory.knows(metadata["uid"], metadata["generation"])
    return Turn(fleet.sources.of(metadata["namespace"], "again" if known else ""))


def _will_look(body: Mapping[str, Any], fleet: Fleet) -> bool:
    """Return whether the pass will look at the adapter's source, before it does anything else.

    Not one that finds what an earlier one left behind, nor one over an adapter that has to go from
    an engine: whatever its namespace's sources hold up does not hold up that.
    """
    metadata, spec = body["metadata"], body["spec"]
    poll, now = spec["source"].get("pollIntervalSeconds", 0), asyncio.get_running_loop().time()
    look = fleet.memory.look(metadata["uid"], metadata["generation"], now, poll)
    if look is not None or spec.get("revision") or fleet.readers.has(metadata["uid"]):
        return False
    adapter = LoRAAdapter.model_validate(body)
    about = (adapter.metadata.namespace, adapter.pool_key, adapter.served_name)
    return refusal(fleet.world, *about) is None and not _has_to_let_go(adapter, fleet)


def _has_to_let_go(adapter: LoRAAdapter, fleet: Fleet) -> bool:
    """Return whether others wait for what it has on an engine, as far as the plan knows."""
    plan = fleet.planner(adapter.pool_key).plan
    entry = plan.entries.get(adapter.key)
    return entry is not None and bool(displaced_from(plan, entry) or over_quota_on(plan, entry))


async def _reconciled(turn: Turn, body: dict[str, Any], fleet: Fleet) -> bool:
    """Reconcile the adapter and write its status; return False if it should be tried again soon."""
    adapter = LoRAAdapter.model_validate(body)
    publish = partial(_publish, body, fleet)
    with metrics.RECONCILE_SECONDS.labels(names.ADAPTER_KIND).time():
        created = body["metadata"]["creationTimestamp"]
        try:
            result = await reconcile(adapter, created, fleet, publish, turn)
        except (NoAnswer, TermOver):
            raise  # no fault of the adapter or of the operator
        except Exception as error:
            await publish(failed(adapter, error))
            raise
    if result.error_reason:
        metrics.RECONCILE_ERRORS.labels(result.error_reason).inc()
        _LOG.info("%s: %s: %s", adapter.key, result.error_reason, result.error)
    await publish(result)
    crash_at("reported")
    metrics.ADAPTERS.show(
        adapter.metadata.namespace,
        adapter.metadata.name,
        metrics.Shown(
            adapter.spec.base_model,
            tuple((intern(e.type), intern(e.status)) for e in result.status.conditions),
            desired=result.status.desired_engines,
            ready=result.status.ready_engines,
            pool=adapter.pool_key,
            reason=_why_not_ready(result.status),
            tiers=_tiers(result.status),
            steps=tuple((e.pod_name, e.step) for e in result.status.engines if e.step is not None),
            pushed_step=_pushed_step(adapter),
        ),
    )
    return not result.retry


def _why_not_ready(status: LoRAAdapterStatus) -> str:
    found = next((e for e in status.conditions if e.type == ConditionType.READY), None)
    return intern(found.reason) if found is not None and found.status != "True" else ""


def _pushed_step(adapter: LoRAAdapter) -> int | None:
    push = adapter.spec.source.push
    return push.step if push is not None and push.revision else None


def _tiers(status: LoRAAdapterStatus) -> tuple[tuple[str, int], ...]:
    counts = Counter(intern(str(entry.tier)) for entry in status.engines if entry.tier)
    return tuple(sorted(counts.items()))


async def _publish(body: dict[str, Any], fleet: Fleet, result: Report) -> None:
    """Write the status, and post Events about what has changed in it."""
    body = fleet.bodies.newest(body)
    before = body.get("status") or {}
    if await fleet.writer.write(names.ADAPTER_KIND, body, result.status.to_api()):
        await _tell(names.ADAPTER_KIND, body, fleet, before, result.status.conditions)


async def _tell(
    kind: str,
    body: Mapping[str, Any],
    fleet: Fleet,
    before: Mapping[str, Any],
    now: Sequence[Condition],
) -> None:
    """Post Events about what has changed in an object's conditions since the status `before`."""
    metadata = body["metadata"]
    old = [Condition.model_validate(each) for each in before.get("conditions") or ()]
    for entry in transitions(old, now):
        _LOG.info(
            "%s/%s: %s=%s %s: %s",
            metadata["namespace"],
            metadata["name"],
            *(entry.type, entry.status, entry.reason, entry.message),
        )
        await post_event(
            fleet.api,
            kind,
            body,
            type_="Normal" if entry.status == "True" else "Warning",
            reason=entry.reason,
            message=f"{entry.type}: {entry.message}",
        )


async def pool_round(uid: str, place: Turn, fleet: Fleet) -> Outcome | None:
    """Look at one pool as it is now; see Rounds."""
    body = fleet.bodies.get(uid)
    if body is None or fleet.world.gone(uid):
        fleet.bodies.drop(uid)
        return None
    if finalizer.is_held(body):  # earlier versions put it on pools too
        with suppress(finalizer.Overtaken):
            await finalizer.release(fleet.api, names.POOL_PLURAL, body)
    return Outcome(await pool_pass(body, fleet), fleet.settings.resync_seconds)


async def pool_pass(body: dict[str, Any], fleet: Fleet) -> bool:
    """Reconcile a pool and write its status."""
    body = fleet.bodies.newest(body)
    pool = EnginePool.model_validate(body)
    with metrics.RECONCILE_SECONDS.labels(names.POOL_KIND).time():
        status = await reconcile_pool(pool, fleet)
    before = fleet.bodies.newest(body).get("status") or {}
    if await fleet.writer.write(names.POOL_KIND, body, status.to_api()):
        await _tell(names.POOL_KIND, body, fleet, before, status.conditions)
    return True


async def deletion_pass(body: dict[str, Any], fleet: Fleet) -> Outcome | None:
    """Unload a deleted adapter everywhere, then let it go.

    Engines that do not answer within the deletion timeout are left to the pool's next pass that
    reaches them. An object that is gone before it was let go had no finalizer of ours, or lost it
    to a person: what it left is unloaded, unless that is a namesake's by now.
    """
    adapter = LoRAAdapter.model_validate(body)
    uid, namespace = adapter.metadata.uid, adapter.metadata.namespace
    gone = fleet.world.gone(uid)
    existing = fleet.world.existing.get(namespace) or ()
    succeeded = gone and adapter.key in existing
    late = ""
    if uid not in fleet.released and not succeeded:
        await withdraw(adapter, fleet)
        if waiting := await let_go(adapter, fleet):
            limit = fleet.settings.deletion_timeout_seconds
            if not waiting.overdue(adapter, limit, clock.now()):
                return _DELETION_GOES_ON
            late = f"{waiting}: deleted before it was unloaded there"
        crash_at("unloaded")
    if not gone:
        fleet.released.add(uid)  # before the request: its answer and the watch race
        try:
            if finalizer.is_held(body):
                answer = await finalizer.release(fleet.api, names.ADAPTER_PLURAL, body)
                fleet.bodies.answered(answer)
        except finalizer.Overtaken:
            fleet.released.discard(uid)
            return _DELETION_GOES_ON
        except Exception:
            fleet.released.discard(uid)
            raise
    if late:
        _LOG.warning("%s: %s", adapter.key, late)
        await post_event(
            fleet.api,
            names.ADAPTER_KIND,
            body,
            type_="Warning",
            reason="ForcedCleanup",
            message=late,
        )
    if not fleet.world.gone(uid):
        return Outcome(well=True, interval=fleet.settings.resync_seconds)  # others hold it still
    fleet.forget_adapter(uid, adapter.key)
    if not succeeded:
        metrics.ADAPTERS.forget(namespace, adapter.metadata.name)
    return None


def adapter_interval(body: Mapping[str, Any], fleet: Fleet) -> float:
    """Return the seconds to the next pass over an adapter that nothing wakes.

    One that is served as it is wanted waits for its turn among all, unless it asks for more.
    """
    spec, status = body.get("spec") or {}, body.get("status") or {}
    poll = (spec.get("source") or {}).get("pollIntervalSeconds") or 0
    idle = (spec.get("placement") or {}).get("idleSeconds") or 0
    resync = math.inf if _settled(status) else fleet.settings.resync_seconds
    if status.get("canary"):
        trial = (spec.get("rollout") or {}).get("canary") or {}
        resync = min(resync, max(_TRIAL_SECONDS[0], trial.get("holdSeconds", 0) / _TRIAL_LOOKS))
        resync = min(resync, _TRIAL_SECONDS[1])
    return min(float(each) for each in (resync, poll, idle) if each)


def _settled(status: Mapping[str, Any]) -> bool:
    """Return whether the adapter is served as it is wanted, and nothing of it is under way."""
    said = {each["type"]: each["status"] for each in status.get("conditions") or ()}
    return said.get(ConditionType.READY) == "True" and not any(
        status.get(each) for each in _UNDER_WAY
    )
