"""Fan-out: the source is read once and sent once, however many engines take it.

Engines of one kind form chains. The head of a chain gets the bytes from here and its sidecar
passes them on. What a chain leaves undone, because a sidecar in it failed, is done in the next
round by a chain of those that lack something: they have what arrived, and are sent the rest.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lorafleet.errors import (
    LorafleetError,
    StagingBusy,
    TransferInterrupted,
)
from lorafleet.pulse import Pulse
from lorafleet.v1alpha1 import sidecar_pb2 as pb

from lorafleet_operator.transfer.reading import Reading
from lorafleet_operator.transfer.streaming import outcome_of, stage

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from lorafleet_operator.transfer.client import SidecarClient
    from lorafleet_operator.transfer.streaming import Limits, Payload

_BUSY_PAUSE_SECONDS: Final = 0.05
_BUSY_TRIES: Final = 100
_CHUNKS: Final = 128
_LEAST_CHUNK_BYTES: Final = 256 << 10
"""Each chunk costs a sidecar about a millisecond beside its bytes."""


@dataclass(frozen=True)
class Target:
    """One engine that content is to be staged on."""

    client: SidecarClient
    kind: Hashable = None
    """Engines of one kind may form a chain: equal profiles, of one pool. None: never in a chain."""
    reuses: bool = False
    """Whether its sidecar copies what an earlier revision has, if the manifest says enough."""


async def spread(
    payload: Payload,
    targets: Mapping[str, Target],
    limits: Limits,
    on_sent: Callable[[int], None] = lambda _: None,
) -> dict[str, pb.StagedRevision | LorafleetError]:
    """Stage `payload` on all `targets`, by pod UID; return what each committed, or why not.

    `on_sent` is called with the bytes of each chunk that was sent from here. Raises what
    `payload.read` raises.
    """
    reading = Reading(payload, limits)
    try:
        return await _spread(payload, targets, limits, on_sent, reading)
    finally:
        await reading.close()


async def _spread(
    payload: Payload,
    targets: Mapping[str, Target],
    limits: Limits,
    on_sent: Callable[[int], None],
    reading: Reading,
) -> dict[str, pb.StagedRevision | LorafleetError]:
    results: dict[str, pb.StagedRevision | LorafleetError] = {}
    patience = _BUSY_TRIES
    while left := [uid for uid in targets if uid not in results]:
        chains = form_chains({uid: targets[uid] for uid in left}, payload, limits)
        found = await stage(
            payload,
            {chain[0]: targets[chain[0]].client for chain in chains},
            limits,
            on_sent,
            behind={
                chain[0]: [neighbour(uid, targets[uid]) for uid in chain[1:]] for chain in chains
            },
            reading=reading,
        )
        heads = {chain[0] for chain in chains}
        if len(left) < len(targets) and patience:
            # One whose chain has just broken may still be ending that stream.
            busy = {uid for uid in heads if isinstance(found[uid], StagingBusy)}
            if busy:
                heads, patience = heads - busy, patience - 1
                await asyncio.sleep(_BUSY_PAUSE_SECONDS)
        for uid in left:
            result = found.get(uid)
            if uid in heads or _is_final(result):
                results[uid] = found[uid]  # so each round is shorter than the last
            elif payload.manifest.whole:  # a source that is compared as a whole is read anew
                results[uid] = result or TransferInterrupted(
                    f"adapter {payload.manifest.adapter}: the chain to this engine broke"
                )
    return results


async def fill(
    request: pb.SendAdapterRequest,
    donor: SidecarClient,
    targets: Mapping[str, Target],
    seconds: float,
) -> dict[str, pb.StagedRevision | LorafleetError]:
    """Fill `targets` from the arena of `donor`; return what is known of them, by pod UID.

    No byte of the source is read, and none is sent from here. `request` names no neighbours yet.
    """
    request.to.extend(neighbour(uid, target) for uid, target in targets.items())
    question = donor.question()
    pulse = Pulse(f"sidecar at {donor.address}", question.ask, seconds)
    try:
        async with pulse.within(seconds, "fill its neighbours"):
            report = await donor.send(request, seconds)
    except LorafleetError as error:
        return dict.fromkeys(targets, error)
    finally:
        await pulse.stop()
        await question.close()
    return {each.pod_uid: outcome_of(each) for each in report.outcomes}


def form_chains(targets: Mapping[str, Target], payload: Payload, limits: Limits) -> list[list[str]]:
    """Return the chains, each with its head first. Pure.

    An adapter of a single chunk goes to each engine directly: on a chain it would only wait.
    """
    kinds: dict[Hashable, list[str]] = {}
    chains: list[list[str]] = []
    for uid, target in targets.items():
        if target.kind is None or len(payload.plan) < 2:
            chains.append([uid])
        else:
            kinds.setdefault(target.kind, []).append(uid)
    for members in kinds.values():
        step = limits.chain_engines
        chains += [members[at : at + step] for at in range(0, len(members), step)]
    return chains


def chunk_step(data_bytes: int, most: int) -> int:
    """Return the bytes of a chunk of an adapter of `data_bytes`, at most `most`. Pure.

    The last engine of a chain ends so many chunks after the first as there are engines between
    them: that is to be a small part of the whole. What fits into one chunk is sent in one.
    """
    if data_bytes <= most:
        return most
    return min(most, max(1, data_bytes // _CHUNKS // _LEAST_CHUNK_BYTES) * _LEAST_CHUNK_BYTES)


def _is_final(result: pb.StagedRevision | LorafleetError | None) -> bool:
    """Whether it is the engine's own: not what a broken chain left without some chunks.

    One that its neighbour cannot reach is sent to directly in the next pass, all others first.
    """
    return result is not None and not isinstance(result, TransferInterrupted | StagingBusy)


def neighbour(uid: str, target: Target) -> pb.Neighbour:
    """Return how other sidecars name and reach the target."""
    return pb.Neighbour(pod_uid=uid, host=target.client.host, port=target.client.port)
