"""A push is sent on to the adapter's engines while it comes in.

What an ordinary pass would do once a spec names the revision is begun before: the same checks, the
same engines, the same turn among transfers, up to the commit there, which waits for the spec. Nothing
else is done and nothing said. Whatever stands against it is left to the pass that comes.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lorafleet.errors import LorafleetError
from pydantic import ValidationError

from lorafleet_operator import metrics
from lorafleet_operator.ahead import Content
from lorafleet_operator.api.v1alpha1 import LoRAAdapter
from lorafleet_operator.facts import Facts
from lorafleet_operator.fair import Turn
from lorafleet_operator.filling import target
from lorafleet_operator.observe import observe
from lorafleet_operator.orders import to_send
from lorafleet_operator.outgoing import count_sent, outgoing
from lorafleet_operator.place import stays_in_place
from lorafleet_operator.resolve import preflight
from lorafleet_operator.source_reader import SourceReader, fingerprint_as_taken
from lorafleet_operator.transfer.fanout import spread

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lorafleet_operator.fleet import Fleet
    from lorafleet_operator.push.arriving import Arrival, ArrivingSource
    from lorafleet_operator.transfer.links import EngineLink

_LOG: Final = logging.getLogger(__name__)
_PATIENCE_SECONDS: Final = 2.0
"""How long a trainer may be slow while others wait for the transfer's place: not as long as other
sources, for who leaves it here loses nothing."""
_LEAST_RATE: Final = 1 << 20
"""Bytes a second that are not slow, also where other sources may take any time."""


def is_worth_it(missing_bytes: int, fleet: Fleet) -> bool:
    """Return whether a push brings more than a transfer holds in memory: less is sent in no time."""
    return missing_bytes > fleet.settings.window_chunks * fleet.settings.chunk_bytes


def begin(
    body: dict[str, Any],
    push: Mapping[str, Any],
    source: ArrivingSource,
    arrival: Arrival,
    fleet: Fleet,
) -> None:
    """Begin to send what comes; `push` is what the spec of the adapter (`body`) will say.

    Compared with what is kept of bodies, which is not all that the API server says.
    """
    known = fleet.bodies.get(body["metadata"]["uid"])
    if known is None:
        return  # the watch has yet to bring it
    body = known
    source_of = {**body["spec"]["source"], "push": dict(push)}
    try:
        adapter = LoRAAdapter.model_validate(
            {**body, "spec": {**body["spec"], "source": source_of}}
        )
    except ValidationError:
        return  # of another version: its passes say so
    facts = Facts(adapter, body["metadata"]["creationTimestamp"])
    facts.fingerprint = fingerprint_as_taken(str(push["revision"]), adapter.spec)
    fleet.ahead.begin(
        adapter.key,
        Content(adapter.metadata.uid, facts.fingerprint, adapter.pool_key),
        partial(_send, facts, body, source, fleet),
        lambda: arrival.whole,
    )


async def _send(
    facts: Facts, body: Mapping[str, Any], source: ArrivingSource, fleet: Fleet
) -> None:
    """Send what comes for as long as people change nothing else of the adapter."""
    adapter = facts.adapter
    uid, term, task = adapter.metadata.uid, fleet.term(adapter.pool_key), asyncio.current_task()
    assert task is not None
    reader = SourceReader(adapter, fleet, Turn(asyncio.Semaphore()), source)

    def look() -> None:
        if not _is_same(fleet.bodies.get(uid), body):
            task.cancel()

    try:
        with fleet.bodies.told(uid, look):
            if term is not None and _is_same(fleet.bodies.get(uid), body):
                with term.acting():
                    await _stage(facts, reader, fleet)
    except LorafleetError as error:
        _LOG.info("%s: what is pushed is not sent on while it comes: %s", facts.key, error)
    finally:
        await reader.aclose()


def _is_same(one: Mapping[str, Any] | None, other: Mapping[str, Any]) -> bool:
    """Return whether two bodies of an adapter say the same but for what was pushed last."""
    return one is not None and _said(one) == _said(other)


def _said(body: Mapping[str, Any]) -> tuple[object, ...]:
    metadata, spec = body["metadata"], body["spec"]
    source = {**spec["source"], "push": None}
    annotations = metadata.get("annotations") or {}
    return {**spec, "source": source}, annotations, metadata.get("deletionTimestamp")


async def _stage(facts: Facts, reader: SourceReader, fleet: Fleet) -> None:
    if facts.paused or facts.pinned:
        return
    await observe(facts, fleet)
    await preflight(facts, reader, fleet)
    if not stays_in_place(facts, fleet) or not (facts.may_act and facts.may_read):
        return
    links = {
        uid: link
        for uid, link in to_send(facts, fleet).get(facts.fingerprint, {}).items()
        if _has_room(facts, uid)
    }
    if links:
        tenant = fleet.tenant(facts.adapter.pool_key, facts.adapter.metadata.namespace)
        async with fleet.transfers.of(tenant):
            with metrics.TRANSFERS.track_inprogress():
                await _spread(facts, reader, fleet, links)


async def _spread(
    facts: Facts, reader: SourceReader, fleet: Fleet, links: Mapping[str, EngineLink]
) -> None:
    targets = {uid: target(link) for uid, link in links.items()}
    payload, limits = await outgoing(facts, reader, fleet, targets)
    limits = replace(
        limits,
        patience_seconds=_PATIENCE_SECONDS,
        least_source_rate=max(limits.least_source_rate, _LEAST_RATE),
    )
    for uid, result in (await spread(payload, targets, limits, count_sent)).items():
        if isinstance(result, LorafleetError):
            _LOG.info("%s: not sent to %s: %s", facts.key, links[uid].endpoint.pod, result)
        else:
            metrics.TRANSFER_RESULTS.labels("ok").inc()
            links[uid].learn(facts.fingerprint, result.digest)


def _has_room(facts: Facts, uid: str) -> bool:
    """Return whether the content fits beside all that is there: nothing gives way for what may not come."""
    inventory, verdict = facts.view(uid).inventory, facts.verdicts[uid]
    return inventory is not None and verdict.size_bytes <= inventory.arena.largest_free_bytes
