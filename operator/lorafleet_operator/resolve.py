"""Reading an adapter's source: its fingerprint each poll, its content only when it is needed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from lorafleet.errors import LorafleetError, SourceChanged, SourceNotFound
from lorafleet.header import parse_header
from lorafleet.layout import plan_layout
from lorafleet.peft_config import AdapterConfig

from lorafleet_operator.aside import aside
from lorafleet_operator.crashpoint import crash_at
from lorafleet_operator.memory import Look, Verdict
from lorafleet_operator.revisions import (
    digest_of,
    fingerprint_of,
    own_revisions,
    settled_content,
)
from lorafleet_operator.source_reader import fingerprint_as_taken

if TYPE_CHECKING:
    from lorafleet.profile import EngineProfile

    from lorafleet_operator.api.v1alpha1 import LoRAAdapterSpec
    from lorafleet_operator.facts import Facts
    from lorafleet_operator.fleet import Fleet
    from lorafleet_operator.source_reader import SourceReader
    from lorafleet_operator.sources.base import ResolvedAdapter

ARENA_ALIGNMENT = 2 << 20
"""Extents of the arena are multiples of this; placement counts what will be taken."""


async def resolve(facts: Facts, reader: SourceReader, fleet: Fleet) -> None:
    """Learn the fingerprint of the wanted content.

    A source that does not answer is no reason to disturb what is served: the fingerprint that
    the status names for this generation counts until the source says otherwise.
    """
    adapter = facts.adapter
    if facts.forbidden is not None:
        return  # it has to go, and whoever it belongs to might let its source hang
    if (push := adapter.spec.source.push) is not None and push.revision:
        facts.pushed_content = fingerprint_as_taken(push.revision, adapter.spec)
    if facts.pinned:
        resolve_revision(facts)
        return
    if adapter.spec.source.push is not None:
        resolve_push(facts)
        await check_pushed(facts, reader, fleet)
        return
    uid, generation = adapter.metadata.uid, adapter.metadata.generation
    now = asyncio.get_running_loop().time()
    poll = adapter.spec.source.poll_interval_seconds
    if fleet.memory.failed_with_secret(uid) and not fleet.secrets.follows(facts.key):
        fleet.memory.drop_look(uid)  # that Secret is another now
    look = fleet.memory.look(uid, generation, now, poll)
    if look is None and not await reader.read_soon():
        facts.unread = True
        look = _look_before(facts, fleet)
    elif look is None:
        try:
            content = await reader.content()
        except LorafleetError as error:
            look = _failure(error, facts, reader, fleet)
            fleet.memory.keep_look(uid, look)
        else:
            look = Look(
                generation,
                now,
                fingerprint=content.fingerprint,
                origin=f"{content.uri} at {content.revision}",
                revision=content.revision,
                normalized=content.normalized,
            )
            fleet.memory.keep_look(uid, look)
    crash_at("resolved")
    facts.source_error = look.error
    facts.fingerprint = look.fingerprint
    facts.origin, facts.revision = look.origin, look.revision
    if look.error is not None and not look.error.terminal:
        status = adapter.status
        if status.observed_generation == generation:
            facts.fingerprint = status.fingerprint


def _look_before(facts: Facts, fleet: Fleet) -> Look:
    """Return what is known of the source while it has yet to answer."""
    status, metadata = facts.adapter.status, facts.adapter.metadata
    told = status.fingerprint if status.observed_generation == metadata.generation else ""
    found = fleet.memory.found_last(metadata.uid, metadata.generation)
    return found or Look(metadata.generation, 0.0, fingerprint=told)


def resolve_push(facts: Facts) -> None:
    """Learn the pushed content that the spec names: nothing has to be read for that."""
    push = facts.adapter.spec.source.push
    assert push is not None
    if not push.revision:
        facts.source_error = SourceNotFound(f"nothing has been pushed to {facts.key} yet")
        return
    facts.origin, facts.revision = f"push of step {push.step}", push.revision
    facts.fingerprint = facts.pushed_content


async def check_pushed(facts: Facts, reader: SourceReader, fleet: Fleet) -> None:
    """Want the pushed revision only if the adapter has it: a spec may name any, also what others
    pushed. What engines have of it counts if this adapter was it before."""
    metadata, spec = facts.adapter.metadata, facts.adapter.spec
    now, poll = asyncio.get_running_loop().time(), spec.source.poll_interval_seconds
    if (
        not facts.fingerprint
        or digest_of(facts.engines, facts.fingerprint) in own_revisions(facts)
        or fleet.memory.look(metadata.uid, metadata.generation, now, poll) is not None
    ):
        return
    try:
        await reader.content()
    except LorafleetError as error:
        facts.fingerprint, facts.source_error = "", error
    else:
        fleet.memory.keep_look(metadata.uid, Look(metadata.generation, now, facts.fingerprint))


def resolve_revision(facts: Facts) -> None:
    """Learn the content of the revision that the spec names from the engines that have it."""
    digest, own = facts.adapter.spec.revision or "", own_revisions(facts)
    facts.origin, facts.revision = f"{digest} by spec.revision", digest
    facts.fingerprint = fingerprint_of(facts.engines, digest) if digest in own else ""
    if digest not in own:
        facts.not_staged = (
            f"{digest} is no revision of this adapter; there are {', '.join(own) or 'none yet'}"
        )
    elif not facts.fingerprint:
        facts.not_staged = f"{digest} is staged on no engine any more: it cannot be served again"


def _failure(error: LorafleetError, facts: Facts, reader: SourceReader, fleet: Fleet) -> Look:
    """Return what a failed look leaves behind."""
    metadata, now = facts.adapter.metadata, asyncio.get_running_loop().time()
    if error.terminal:
        return Look(metadata.generation, now, error=error)
    failures = fleet.memory.failures(metadata.uid, metadata.generation) + 1
    return Look(
        metadata.generation,
        now,
        error=error,
        failures=failures,
        # The shortest pause of the loop's own, so that its next pass asks again.
        patience=fleet.settings.backoff(failures, jitter=1.0),
        with_secret=reader.secret is not None,
    )


async def preflight(facts: Facts, reader: SourceReader, fleet: Fleet) -> None:
    """Check the content against what each engine of the pool can take, before any is touched."""
    await _judge_engines(facts, reader, fleet)
    metadata = facts.adapter.metadata
    for view in facts.engines:
        verdict = facts.verdicts.get(view.uid)
        refusal = (verdict.error if verdict else None) or fleet.memory.refusal(
            metadata.uid, view.instance, metadata.generation, facts.fingerprint
        )
        if refusal is not None:
            facts.refusals[view.uid] = refusal
    if (settled := settled_content(facts)) is not None:
        about = (metadata.generation, settled.fingerprint)
        facts.unable = {
            view.uid
            for view in facts.engines
            if fleet.memory.gave_up(metadata.uid, view.instance, *about)
        }


async def _judge_engines(facts: Facts, reader: SourceReader, fleet: Fleet) -> None:
    if not facts.fingerprint:
        return
    if facts.pinned or facts.unread or facts.source_error is not None:
        _judge_staged(facts)  # a source that is away keeps no engine from what a neighbour has
        return
    spec = facts.adapter.spec
    found: dict[int, Verdict] = {}  # by profile: most engines of a pool share one, large to compare
    for view in facts.engines:
        if not view.member or view.profile is None:
            continue
        if id(view.profile) in found:
            facts.verdicts[view.uid] = found[id(view.profile)]
            continue
        # The fingerprint tells adapterName and dropUnmatched apart: see as_taken.
        key = (facts.key, facts.fingerprint, spec.allow_base_mismatch, view.profile)
        verdict = fleet.memory.verdict(key)
        if verdict is None and not await reader.read_soon():
            facts.unread = True
            _judge_staged(facts)
            return
        if verdict is None:
            try:
                content = await same_content(facts, reader, fleet)
            except LorafleetError as error:
                _judge_staged(facts)
                if spec.source.push is None or not digest_of(facts.engines, facts.fingerprint):
                    facts.source_error = error  # else engines have what this operator has not
                return
            size = len(content.header_bytes)
            verdict = await aside(size, judge, facts.key, content, view.profile, spec)
            fleet.memory.keep_verdict(key, verdict)
        facts.verdicts[view.uid] = found[id(view.profile)] = verdict


def _judge_staged(facts: Facts) -> None:
    """What an engine has staged, others of its profile can take; of the rest nothing is known."""
    found = {
        id(view.profile): Verdict(size_bytes=staged.size_bytes, rank=staged.rank, by_arena=True)
        for view in facts.engines
        if view.member and (staged := view.staged(view.digest_of(facts.fingerprint))) is not None
    }
    for view in facts.engines:
        if view.member and view.profile is not None and id(view.profile) in found:
            facts.verdicts.setdefault(view.uid, found[id(view.profile)])


async def same_content(facts: Facts, reader: SourceReader, fleet: Fleet) -> ResolvedAdapter:
    """Return the content that the pass decides on. Raises SourceChanged if it is another now."""
    content = await reader.content()
    if content.fingerprint != facts.fingerprint:
        fleet.memory.drop_look(facts.adapter.metadata.uid)
        raise SourceChanged(f"adapter {facts.key}: the source changed while it was read")
    return content


def judge(
    adapter: str, content: ResolvedAdapter, profile: EngineProfile, spec: LoRAAdapterSpec
) -> Verdict:
    """Return what an engine of this profile would make of the content. Pure."""
    try:
        layout = plan_layout(
            parse_header(content.header_bytes, content.data_bytes),
            AdapterConfig.parse(content.config_bytes, adapter=adapter),
            profile,
            adapter=adapter,
            allow_base_mismatch=spec.allow_base_mismatch,
            adapter_name=spec.source.adapter_name or "",
            drop_unmatched=spec.drop_unmatched or "",
        )
    except LorafleetError as error:
        return Verdict(error=error)
    size = len(layout.image_header) + layout.data_bytes
    return Verdict(
        size_bytes=-(-size // ARENA_ALIGNMENT) * ARENA_ALIGNMENT,
        rank=layout.rank,
        normalized=(*content.normalized, *layout.normalized),
        notes=layout.notes,
        left_out=layout.left_out,
    )
