"""What is sent of an adapter's content, and what bounds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lorafleet_operator import metrics
from lorafleet_operator.aside import aside
from lorafleet_operator.crashpoint import crash_at
from lorafleet_operator.payload import payload_of
from lorafleet_operator.resolve import same_content
from lorafleet_operator.transfer.fanout import chunk_step
from lorafleet_operator.transfer.streaming import Limits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from lorafleet_operator.facts import Facts
    from lorafleet_operator.fleet import Fleet
    from lorafleet_operator.source_reader import SourceReader
    from lorafleet_operator.transfer.fanout import Target
    from lorafleet_operator.transfer.streaming import Payload


async def outgoing(
    facts: Facts, reader: SourceReader, fleet: Fleet, targets: Mapping[str, Target]
) -> tuple[Payload, Limits]:
    """Return the transfer of what the source holds to the targets."""
    content = await same_content(facts, reader, fleet)
    tenant = fleet.tenant(facts.adapter.pool_key, facts.adapter.metadata.namespace)
    step = chunk_step(content.data_bytes, fleet.settings.chunk_bytes)
    payload = await aside(
        len(content.header_bytes),
        payload_of,
        facts,
        content,
        step,
        reuse=all(each.reuses for each in targets.values()),
    )
    limits = Limits(
        window_chunks=fleet.settings.window_chunks * fleet.settings.chunk_bytes // step,
        read_bytes=fleet.settings.chunk_bytes,
        stall_seconds=fleet.settings.stall_seconds,
        commit_seconds=fleet.settings.load_timeout_seconds,
        pace=_pace(facts, fleet),
        least_source_rate=fleet.settings.least_source_rate,
        others_wait=fleet.transfers.of(tenant).awaited,
    )
    return payload, limits


def count_sent(amount: int) -> None:
    """Count bytes that an engine took."""
    metrics.TRANSFER_BYTES.inc(amount)
    crash_at("chunk.sent")


def _pace(facts: Facts, fleet: Fleet) -> Callable[[int], Awaitable[None]] | None:
    """Return what keeps the transfer within its pool's and its tenant's limits, None without any."""
    if facts.pool is None:
        return None
    namespace, limits = facts.adapter.metadata.namespace, facts.pool.spec.transfer
    tenant = fleet.tenant(facts.pool.key, namespace)
    rule = fleet.planner(facts.pool.key).plan.board.tenancy.rule(tenant)
    rates = {
        f"namespace {namespace}": limits.namespace_rate if limits is not None else None,
        f"tenant {tenant}": rule.transfer_rate if rule is not None else None,
        "pool": limits.pool_rate if limits is not None else None,
    }
    return fleet.paces.of(facts.pool.key, rates)
