"""Engines that lack content get it from the arena of a neighbour that has it, if there is one.

A new engine, or one that lost its arena, costs the source nothing then. Whatever goes wrong is
left to the source: an engine that is not filled here is sent the content by the operator.
"""

from __future__ import annotations

import logging
import zlib
from typing import TYPE_CHECKING, Final

from lorafleet.v1alpha1 import sidecar_pb2 as pb

from lorafleet_operator.transfer.fanout import Target, chunk_step, fill

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lorafleet_operator.facts import Facts
    from lorafleet_operator.fleet import Fleet
    from lorafleet_operator.transfer.links import EngineLink

_LEAST_BYTES_PER_SECOND: Final = 10 << 20
_LOG: Final = logging.getLogger(__name__)


def target(link: EngineLink) -> Target:
    """Return the engine of `link` as one of a chain, if its sidecar passes transfers on."""
    said = link.inventory
    chained = link.profile is not None and said is not None and said.forwards
    # Links share equal profiles; an engine of another dtype or layout is in another chain.
    kind = id(link.profile) if chained else None
    return Target(link.client, kind, reuses=said is not None and said.reuses)


async def fill_from_neighbours(
    facts: Facts, fleet: Fleet, lacking: Mapping[str, EngineLink], fingerprint: str
) -> dict[str, pb.StagedRevision]:
    """Fill what engines of `lacking` can be filled with that content; return what they committed."""
    filled: dict[str, pb.StagedRevision] = {}
    for kind, donors in _donors(facts, fleet, fingerprint).items():
        targets = {
            uid: each for uid, link in lacking.items() if (each := target(link)).kind == kind
        }
        if not targets:
            continue
        # Not the same one for all adapters: a new engine is filled by all its neighbours.
        digest, donor = donors[zlib.crc32(facts.key.encode()) % len(donors)]
        seconds = fleet.settings.load_timeout_seconds
        seconds += (facts.size_bytes or 0) / _LEAST_BYTES_PER_SECOND
        for uid, result in (
            await fill(_request(facts, fleet, digest, fingerprint), donor.client, targets, seconds)
        ).items():
            if isinstance(result, pb.StagedRevision):
                filled[uid] = result
            else:
                _LOG.info("%s: not filled by %s: %s", facts.key, donor.endpoint.pod, result)
    return filled


def _donors(
    facts: Facts, fleet: Fleet, fingerprint: str
) -> dict[object, list[tuple[str, EngineLink]]]:
    """Return (digest, link) of the engines that have the content, by kind."""
    found: dict[object, list[tuple[str, EngineLink]]] = {}
    for view in facts.engines:
        digest, link = view.digest_of(fingerprint), fleet.links.get(view.uid)
        if digest and view.member and not view.problem and link is not None:
            kind = target(link).kind
            if kind is not None:
                found.setdefault(kind, []).append((digest, link))
    return found


def _request(facts: Facts, fleet: Fleet, digest: str, fingerprint: str) -> pb.SendAdapterRequest:
    spec = facts.adapter.spec
    return pb.SendAdapterRequest(
        digest=digest,
        adapter=facts.key,
        fingerprint=fingerprint,
        allow_base_mismatch=spec.allow_base_mismatch,
        adapter_name=spec.source.adapter_name or "",
        drop_unmatched=spec.drop_unmatched or "",
        chunk_bytes=chunk_step(facts.size_bytes or 0, fleet.settings.chunk_bytes),
    )
