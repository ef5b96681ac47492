"""Reading an adapter's source: its fingerprint each poll, its content only when it is needed."""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from lorafleet.errors import LorafleetError, SourceChanged, SourceNotFound
from lorafleet.header import parse_header
from lorafleet.layout import plan_layout
from lorafleet.peft_config import AdapterConfig

from lorafleet_operator import metrics
from lorafleet_operator.aside import aside
from lorafleet_operator.awaited_secrets import Referenced
from lorafleet_operator.cluster import reads
from lorafleet_operator.crashpoint import crash_at
from lorafleet_operator.fair import Turn
from lorafleet_operator.memory import Look, Verdict
from lorafleet_operator.revisions import (
    digest_of,
    fingerprint_of,
    own_revisions,
    settled_content,
)
from lorafleet_operator.sources.registry import open_source

if TYPE_CHECKING:
    from types import TracebackType

    from lorafleet.profile import EngineProfile

    from lorafleet_operator.api.v1alpha1 import LoRAAdapterSpec
    from lorafleet_operator.facts import Facts
    from lorafleet_operator.fleet import Fleet
    from lorafleet_operator.sources.base import ResolvedAdapter, Source

ARENA_ALIGNMENT = 2 << 20
"""Extents of the arena are multiples of this; placement counts what will be taken."""


class SourceReader:
    """One pass's access to its adapter's source, opened at most once and closed at its end."""

    def __init__(self, facts: Facts, fleet: Fleet, turn: Turn | None = None) -> None:
        self._facts = facts
        self._fleet = fleet
        self._turn = turn or Turn(fleet.sources.of(facts.adapter.metadata.namespace))
        self._source: Source | None = None
        self._content: ResolvedAdapter | None = None
        self.secret: Referenced | None = None
        """The Secret that was read for the source."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self._source is not None:
                await self._source.aclose()
        finally:
            # The source knows this reader, to count what it reads: a circle that holds the pass.
            self._source = self._content = None
            self._turn.give_back()

    async def wait_for_turn(self) -> None:
        """Take the pass's place among those whose source is open.

        Whoever needs it for a transfer takes it before the place among transfers: others hold
        this one while they wait for that, and each would wait for the other for ever.
        """
        await self._turn.take()

    async def content(self) -> ResolvedAdapter:
        """Return header, config and reads of what the source holds now."""
        if self._content is None:
            await self._turn.take()
            adapter = self._facts.adapter
            spec = adapter.spec.source
            secret = None
            if spec.credentials_secret_ref is not None:
                place = (adapter.metadata.namespace, spec.credentials_secret_ref.name)
                self.secret = Referenced(*place, version="")  # if it may not be read
                found = await reads.secret(self._fleet.api, *place)
                self.secret = Referenced(*place, found.version)
                secret = found.data
            source = open_source(
                spec,
                namespace=adapter.metadata.namespace,
                name=adapter.metadata.name,
                settings=self._fleet.source_settings,
                secret=secret,
                on_read=self._count,
            )
            self._source = source
            self._content = as_taken(await source.resolve(), adapter.spec)
        return self._content

    def _count(self, amount: int) -> None:
        if self._source is not None:
            metrics.SOURCE_READ_BYTES.labels(self._source.kind).inc(amount)


def as_taken(content: ResolvedAdapter, spec: LoRAAdapterSpec) -> ResolvedAdapter:
    """Return the content with an identity that tells also what the spec takes of it.

    Sidecars and links remember content by its fingerprint, and another choice of the same file
    is other content.
    """
    taken = _fingerprint_as_taken(content.fingerprint, spec)
    return content if taken == content.fingerprint else replace(content, fingerprint=taken)


def _fingerprint_as_taken(fingerprint: str, spec: LoRAAdapterSpec) -> str:
    name, drop = spec.source.adapter_name, spec.drop_unmatched
    if name is None and drop is None:
        return fingerprint
    return hashlib.sha256(json.dumps([fingerprint, name, drop]).encode()).hexdigest()


async def resolve(facts: Facts, reader: SourceReader, fleet: Fleet) -> None:
    """Learn the fingerprint of the wanted content.

    A source that does not answer is no reason to disturb what is served: the fingerprint that
    the status names for this generation counts until the source says otherwise.
    """
    adapter = facts.adapter
    if (push := adapter.spec.source.push) is not None and push.revision:
        facts.pushed_content = _fingerprint_as_taken(push.revision, adapter.spec)
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
    if look is None:
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
    if not facts.fingerprint or facts.source_error is not None:
        return
    if facts.pinned:
        _judge_staged(facts)
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
        if verdict is None:
            try:
                content = await same_content(facts, reader, fleet)
            except LorafleetError as error:
                if spec.source.push is not None and digest_of(facts.engines, facts.fingerprint):
                    _judge_staged(facts)  # engines have what this operator has not, or no more
                    return
                facts.source_error = error
                return
            size = len(content.header_bytes)
            verdict = await aside(size, judge, facts.key, content, view.profile, spec)
            fleet.memory.keep_verdict(key, verdict)
        facts.verdicts[view.uid] = found[id(view.profile)] = verdict


def _judge_staged(facts: Facts) -> None:
    """What an engine has staged, others of its profile can take; of the rest nothing is known."""
    found = {
        id(view.profile): Verdict(size_bytes=staged.size_bytes, rank=staged.rank)
        for view in facts.engines
        if view.member and (staged := view.staged(view.digest_of(facts.fingerprint))) is not None
    }
    for view in facts.engines:
        if view.member and view.profile is not None and id(view.profile) in found:
            facts.verdicts[view.uid] = found[id(view.profile)]


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
