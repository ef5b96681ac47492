"""What a loop runs: one pass over one object of the API server, and what is written of it."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lorafleet_operator import metrics
from lorafleet_operator.api import names
from lorafleet_operator.api.meta import Condition
from lorafleet_operator.api.v1alpha1 import EnginePool, LoRAAdapter
from lorafleet_operator.cluster.writes import post_event
from lorafleet_operator.crashpoint import crash_at
from lorafleet_operator.deletion import let_go
from lorafleet_operator.pool_pass import reconcile_pool
from lorafleet_operator.reconcile import reconcile
from lorafleet_operator.report import failed, transitions
from lorafleet_operator.resolve import Turn
from lorafleet_operator.route import withdraw

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lorafleet_operator.fleet import Fleet
    from lorafleet_operator.report import Report

_LOG: Final = logging.getLogger(__name__)
_DELETION_POLL_SECONDS: Final = 2.0
_TRIAL_LOOKS: Final = 20
"""How often the figures of a revision on trial are looked at: each look may be a write."""
_TRIAL_SECONDS: Final = (0.5, 15.0)
"""Least and most seconds between two of them."""


async def adapter_pass(body: Mapping[str, Any], fleet: Fleet) -> bool:
    """Reconcile an adapter and write its status; return False if it should be tried again soon."""
    turn = Turn(fleet.sources)
    metadata = body["metadata"]
    try:
        if not fleet.memory.knows(metadata["uid"], metadata["generation"]):
            # Its source will be read: thousands that wait for that should hold nothing meanwhile.
            await turn.take()
        return await _pass_with(turn, body, fleet)
    finally:
        turn.give_back()


async def _pass_with(turn: Turn, body: Mapping[str, Any], fleet: Fleet) -> bool:
    adapter = LoRAAdapter.model_validate(fleet.writer.current(body))
    publish = partial(_publish, body, fleet)
    with metrics.RECONCILE_SECONDS.labels(names.ADAPTER_KIND).time():
        created = body["metadata"]["creationTimestamp"]
        try:
            result = await reconcile(adapter, created, fleet, publish, turn)
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
            tuple((str(entry.type), str(entry.status)) for entry in result.status.conditions),
            desired=result.status.desired_engines,
            ready=result.status.ready_engines,
        ),
    )
    return not result.retry


async def _publish(body: Mapping[str, Any], fleet: Fleet, result: Report) -> None:
    """Write the status, and post Events about what has changed in it."""
    before = fleet.writer.newest(body)
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


async def pool_pass(body: Mapping[str, Any], fleet: Fleet) -> bool:
    """Reconcile a pool and write its status."""
    pool = EnginePool.model_validate(fleet.writer.current(body))
    with metrics.RECONCILE_SECONDS.labels(names.POOL_KIND).time():
        status = await reconcile_pool(pool, fleet)
    before = fleet.writer.newest(body)
    if await fleet.writer.write(names.POOL_KIND, body, status.to_api()):
        await _tell(names.POOL_KIND, body, fleet, before, status.conditions)
    return True


async def delete_adapter(body: Mapping[str, Any], fleet: Fleet) -> bool:
    """Unload a deleted adapter everywhere; returns when the object may go.

    Engines that do not answer within the deletion timeout are left to the pool's next pass that
    reaches them. If the object is gone already, what a namesake has by now is not touched.
    """
    adapter = LoRAAdapter.model_validate(fleet.writer.current(body))
    namespace = adapter.metadata.namespace

    def succeeded() -> bool:
        existing = fleet.world.existing.get(namespace) or ()
        return fleet.world.gone(adapter.metadata.uid) and adapter.key in existing

    await withdraw(adapter, fleet)
    with fleet.wakeups.loop(adapter.key) as flag:
        while not succeeded() and (waiting := await let_go(adapter, fleet)):
            limit = fleet.settings.deletion_timeout_seconds
            if waiting.overdue(adapter, limit, datetime.now(UTC)):
                text = f"{waiting}: deleted before it was unloaded there"
                _LOG.warning("%s: %s", adapter.key, text)
                await post_event(
                    fleet.api,
                    names.ADAPTER_KIND,
                    body,
                    type_="Warning",
                    reason="ForcedCleanup",
                    message=text,
                )
                break
            await flag.wait(_DELETION_POLL_SECONDS)
    crash_at("unloaded")
    fleet.memory.forget(adapter.metadata.uid)
    fleet.secrets.follow(adapter.key, None)
    fleet.writer.forget(adapter.metadata.uid)
    if not succeeded():
        metrics.ADAPTERS.forget(namespace, adapter.metadata.name)
    return True


def adapter_interval(body: Mapping[str, Any], fleet: Fleet) -> float:
    """Return the seconds to the next pass over an adapter that nothing wakes."""
    poll = ((body.get("spec") or {}).get("source") or {}).get("pollIntervalSeconds") or 0
    resync = fleet.settings.resync_seconds
    if fleet.writer.newest(body).get("canary"):
        trial = ((body.get("spec") or {}).get("rollout") or {}).get("canary") or {}
        resync = min(resync, max(_TRIAL_SECONDS[0], trial.get("holdSeconds", 0) / _TRIAL_LOOKS))
        resync = min(resync, _TRIAL_SECONDS[1])
    return min(resync, float(poll)) if poll else resync
