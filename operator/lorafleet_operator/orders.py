"""Carrying out what the rollout decided: orders to sidecars, many engines at once.

An engine that fails keeps its error in `facts.troubles`; the others go on. A terminal error is
also kept in memory, so that the same content is not sent there again. After each step the
touched engines are asked for their inventory: the next decision is made from what they say.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from lorafleet.errors import (
    DigestMismatch,
    EngineRejected,
    LorafleetError,
    SourceError,
    StagingFull,
)
from lorafleet.v1alpha1 import sidecar_pb2 as pb

from lorafleet_operator import metrics, rollout
from lorafleet_operator.ahead import Content
from lorafleet_operator.crashpoint import crash_at
from lorafleet_operator.facts import GPU
from lorafleet_operator.filling import fill_from_neighbours, target
from lorafleet_operator.outgoing import count_sent, outgoing
from lorafleet_operator.revisions import earlier, to_keep
from lorafleet_operator.transfer.fanout import spread
from lorafleet_operator.world import engine_view

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from lorafleet_operator.api.v1alpha1 import Revision
    from lorafleet_operator.course import Course
    from lorafleet_operator.facts import Facts
    from lorafleet_operator.fleet import Fleet
    from lorafleet_operator.source_reader import SourceReader
    from lorafleet_operator.transfer.client import SidecarClient
    from lorafleet_operator.transfer.fanout import Target
    from lorafleet_operator.transfer.links import EngineLink

_NOTICEABLE_BYTES: Final = 64 << 20
_DRAIN_WAIT_SECONDS: Final = 1
"""How long an order waits for running requests of the old revision. The sidecar unloads that when
the last one ends, however long it takes; the status need not wait for it."""
_LOG: Final = logging.getLogger(__name__)


async def stage(
    facts: Facts, reader: SourceReader, fleet: Fleet, announce: Callable[[], Awaitable[None]]
) -> None:
    """Bring the wanted content to every chosen engine that lacks it.

    From a neighbour that has it, else from the source, which is read once.

    `announce` is called before a transfer that people would notice.
    """
    lacking = to_send(facts, fleet)
    if not facts.may_act or not lacking:
        return
    if (facts.size_bytes or 0) >= _NOTICEABLE_BYTES:
        await announce()
    adapter = facts.adapter
    if await fleet.ahead.over(Content(adapter.metadata.uid, facts.fingerprint, adapter.pool_key)):
        await _look_again(facts, fleet, lacking.get(facts.fingerprint, ()))
        lacking = to_send(facts, fleet)
        if not lacking:
            return
    if facts.may_read:
        await reader.wait_for_turn()
    tenant = fleet.tenant(facts.adapter.pool_key, facts.adapter.metadata.namespace)
    async with fleet.transfers.of(tenant):
        with metrics.TRANSFERS.track_inprogress(), metrics.TRANSFER_SECONDS.time():
            for content, links in lacking.items():
                await _bring(facts, reader, fleet, content, links)


def to_send(facts: Facts, fleet: Fleet) -> dict[str, dict[str, EngineLink]]:
    """Return the chosen engines that lack what they should have, by the content and by pod UID.

    One that has not said what it takes is sent nothing: checks come before bytes.
    """
    course = facts.course()
    lacking: dict[str, dict[str, EngineLink]] = {}
    for uid in rollout.to_stage(facts.wanted(course)):
        link = fleet.links.get(uid)
        if uid in facts.verdicts and not facts.view(uid).problem and link is not None:
            lacking.setdefault(course.content_for(uid), {})[uid] = link
    return lacking


async def _bring(
    facts: Facts,
    reader: SourceReader,
    fleet: Fleet,
    content: str,
    links: Mapping[str, EngineLink],
) -> None:
    """Bring one content to engines. Only the newest can come from the source."""
    results: dict[str, pb.StagedRevision | LorafleetError] = {}
    results |= await fill_from_neighbours(facts, fleet, links, content)
    rest = {uid: target(link) for uid, link in links.items() if uid not in results}
    if rest and content == facts.fingerprint and facts.may_read:
        try:
            results |= await _send(facts, reader, fleet, rest)
        except (SourceError, DigestMismatch) as error:
            facts.source_error = error
            fleet.memory.drop_look(facts.adapter.metadata.uid)
            metrics.TRANSFER_RESULTS.labels(error.reason).inc(len(rest))
            return
    for uid, result in results.items():
        outcome = result.reason if isinstance(result, LorafleetError) else "ok"
        metrics.TRANSFER_RESULTS.labels(outcome).inc()
        if isinstance(result, LorafleetError):
            _note(facts, fleet, uid, result, content)
        else:
            links[uid].learn(content, result.digest)
            crash_at("staged")
    await _look_again(facts, fleet, links)


async def load(facts: Facts, fleet: Fleet) -> None:
    """Make every chosen engine load the wanted revision beside what it serves."""
    if not facts.may_act:
        return
    course = facts.course()
    keep = earlier(facts, course)
    await _order(
        facts,
        fleet,
        course,
        rollout.to_load(facts.wanted(course)),
        lambda uid, client: client.load(
            _load_request(facts, course, keep, uid, publish=False),
            fleet.settings.load_timeout_seconds,
        ),
        step="loaded",
    )


async def publish(facts: Facts, fleet: Fleet) -> None:
    """Move the served name on every engine, if all have proved that they can."""
    if not facts.may_act:
        return
    course = facts.course()
    wanted, keep = facts.wanted(course), earlier(facts, course)
    await _order(
        facts,
        fleet,
        course,
        rollout.to_publish(wanted),
        lambda uid, client: client.load(
            _load_request(facts, course, keep, uid, publish=True),
            fleet.settings.load_timeout_seconds,
        ),
        step="published",
    )
    served = dict(rollout.to_roll_back(wanted))
    await _order(
        facts,
        fleet,
        course,
        served,
        lambda uid, client: client.load(
            _restore_request(facts, keep, uid, served[uid]), fleet.settings.load_timeout_seconds
        ),
    )


async def make_room(facts: Facts, fleet: Fleet) -> None:
    """Unload the old revision where there is no room for two, as many as may be without any."""
    if facts.may_act:
        gone = rollout.to_make_room(facts.wanted())
        await _unload(facts, fleet, [(uid, facts.adapter.served_name) for uid in gone])


async def hand_over(facts: Facts, fleet: Fleet) -> None:
    """Unload what is served under names of before that are another adapter's by now.

    Before anything is loaded: two adapters that swapped their names would wait for each other.
    """
    if facts.placed is not None and facts.placed.gone_names:
        gone = rollout.to_hand_over(facts.wanted(), facts.placed.gone_names)
        await _unload(facts, fleet, gone)


async def retire(facts: Facts, fleet: Fleet) -> None:
    """Unload where the adapter is no longer wanted, and under names that it no longer has."""
    if facts.placed is None:
        return
    gone = rollout.to_retire(
        facts.wanted(), lost_name=facts.placed.lost_name, kept_names=facts.placed.kept_names
    )
    await _unload(facts, fleet, gone)


async def _unload(facts: Facts, fleet: Fleet, gone: Iterable[tuple[str, str]]) -> None:
    """Unload (engine, served name): of one engine one after another."""
    names: defaultdict[str, list[str]] = defaultdict(list)
    for uid, served_name in gone:
        names[uid].append(served_name)
    limit = facts.adapter.spec.drain_timeout_seconds

    async def unload(uid: str, client: SidecarClient) -> None:
        for name in names[uid]:
            request = unload_request(facts.key, name, abort_seconds=limit)
            await client.unload(request, fleet.settings.load_timeout_seconds)

    await _order(facts, fleet, facts.course(), names, unload)


async def _send(
    facts: Facts, reader: SourceReader, fleet: Fleet, targets: Mapping[str, Target]
) -> dict[str, pb.StagedRevision | LorafleetError]:
    """Read the source once, and send it to the targets."""
    uid = facts.adapter.metadata.uid
    lost, kept = fleet.memory.lost(uid), 0
    payload, limits = await outgoing(facts, reader, fleet, targets)

    def sent(amount: int) -> None:
        nonlocal kept
        kept += 0 if payload.manifest.whole else amount
        count_sent(amount)

    try:
        results = await spread(payload, targets, replace(limits, lost=lost), on_sent=sent)
    except SourceError:
        fleet.memory.keep_lost(uid, 0 if kept else lost + 1)
        raise
    fleet.memory.keep_lost(uid, 0)
    return results


def unload_request(
    adapter: str,
    served_name: str,
    *,
    abort_seconds: int | None = None,
    drop_staged: bool = False,
) -> pb.UnloadAdapterRequest:
    """Return the order to let go of a served name of the adapter."""
    return pb.UnloadAdapterRequest(
        adapter=adapter,
        served_name=served_name,
        drain_timeout_seconds=_DRAIN_WAIT_SECONDS,
        drop_staged=drop_staged,
        abort_seconds=abort_seconds,
    )


def _load_request(
    facts: Facts, course: Course, keep: Sequence[Revision], uid: str, *, publish: bool
) -> pb.LoadAdapterRequest:
    spec, view, content = facts.adapter.spec, facts.view(uid), course.content_for(uid)
    digest = view.digest_of(content)
    request = pb.LoadAdapterRequest(
        adapter=facts.key,
        served_name=facts.adapter.served_name,
        digest=digest,
        loader=str(spec.loader),
        **_residency(facts.residency_on(view)),
        publish=publish,
        drain_timeout_seconds=_DRAIN_WAIT_SECONDS,
        keep=sorted(to_keep(view, keep, digest)),
        free_others=True,
        abort_seconds=spec.drain_timeout_seconds,
        two_phase=course.decided is not None and content == course.newest,
    )
    probe = spec.rollout.canary.probe if spec.rollout.canary is not None else None
    if probe is not None and content == course.newest and not facts.pinned:
        request.probe.prompt, request.probe.expect = probe.prompt, probe.expect or ""
        request.probe.max_tokens = probe.max_tokens
    return request


def _residency(order: str) -> dict[str, Any]:
    """Return the fields that say it: older sidecars know `pinned` alone."""
    return {"residency": order, "pinned": order == GPU}


def _restore_request(
    facts: Facts, keep: Sequence[Revision], uid: str, served: rollout.Loaded
) -> pb.LoadAdapterRequest:
    return pb.LoadAdapterRequest(
        adapter=facts.key,
        served_name=served.served_name,
        digest=served.digest,
        loader=served.loader,
        **_residency(served.residency),
        publish=True,
        drain_timeout_seconds=_DRAIN_WAIT_SECONDS,
        keep=sorted(to_keep(facts.view(uid), keep, served.digest)),
        free_others=True,
        abort_seconds=facts.adapter.spec.drain_timeout_seconds,
    )


async def _order(
    facts: Facts,
    fleet: Fleet,
    course: Course,
    engines: Iterable[str],
    order: Callable[[str, SidecarClient], Awaitable[object]],
    step: str = "",
) -> None:
    """Give one order to each engine, all at once, and ask for what came of it."""

    async def one(uid: str) -> None:
        link = fleet.links.get(uid)
        if link is None:
            return
        started = time.monotonic()
        try:
            await order(uid, link.client)
        except LorafleetError as error:
            _note(facts, fleet, uid, error, course.content_for(uid), step)
        crash_at(step)
        _LOG.debug("%s: order to %s took %.3f s", facts.key, uid, time.monotonic() - started)

    touched = [uid for uid in engines if uid not in facts.troubles]
    if touched:
        await asyncio.gather(*(one(uid) for uid in touched))
        await _look_again(facts, fleet, touched)


def _note(
    facts: Facts, fleet: Fleet, uid: str, error: LorafleetError, content: str, step: str = ""
) -> None:
    """Keep what went wrong on one engine with the content that it was to have."""
    metadata, view = facts.adapter.metadata, facts.view(uid)
    about = (metadata.uid, view.instance, metadata.generation, content)
    comes = isinstance(error, StagingFull) and fleet.ahead.give_way(facts.adapter.pool_key)
    if isinstance(error, StagingFull) and facts.may_make_room(view) and not comes:
        facts.full[uid] = error  # its turn to unload the old revision comes
        return
    facts.troubles[uid] = error
    if error.terminal:
        facts.refusals[uid] = error
        fleet.memory.keep_refusal(*about, error)
        if content == facts.fingerprint:
            fleet.wakeups.wake(facts.key)  # the plan learns of it as the next pass begins
    elif error.reason == EngineRejected.reason and step:
        fleet.memory.count_failure(*about)
        if content == facts.fingerprint:
            facts.failures[uid] = (fleet.memory.failures_of(*about), error)


async def _look_again(facts: Facts, fleet: Fleet, touched: Iterable[str]) -> None:
    async def one(uid: str) -> None:
        link = fleet.links.get(uid)
        if link is not None:
            try:
                await link.refresh()
            except LorafleetError as error:
                facts.troubles.setdefault(uid, error)

    await asyncio.gather(*(one(uid) for uid in touched))
    facts.engines = [
        engine_view(view.pod, fleet.links, member=view.member) for view in facts.engines
    ]
