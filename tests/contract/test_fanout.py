"""Chains of real sidecars: how often bytes are read and sent, counted; no clock is looked at."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from fanout_rig import CHUNK, CountedSource, pool, slow_link
from lorafleet.errors import EngineUnreachable, LorafleetError, StagingBusy
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from lorafleet_operator.transfer.client import SidecarClient
from lorafleet_operator.transfer.fanout import fill, spread
from lorafleet_operator.transfer.streaming import Limits
from staging_builders import source_adapter
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from lorafleet_operator.transfer.fanout import Target
    from staging_builders import SourceAdapter

LIMITS = Limits(window_chunks=4, stall_seconds=60, commit_seconds=60)
ADAPTER = source_adapter(rank=64)
COUNT = len(ADAPTER.cuts())


def revision_of(result: pb.StagedRevision | LorafleetError) -> pb.StagedRevision:
    assert isinstance(result, pb.StagedRevision), result
    return result


async def test_a_chain_of_eight_is_read_once_and_sent_once(volume: Path) -> None:
    source = CountedSource(ADAPTER)
    sent: list[int] = []
    async with pool(volume, 8) as engines:
        results = await spread(source.payload(), engines.targets, LIMITS, sent.append)
        digests = {r.digest for r in results.values() if isinstance(r, pb.StagedRevision)}
        assert len(results) == 8
        assert len(digests) == 1
        cuts = source.adapter.cuts()
        assert source.reads == [offset for offset, _ in cuts]
        assert len(sent) == len(cuts)
        size = len(source.adapter.data)
        assert engines.taken() == {f"pod-{n}": size for n in range(8)}
        for each in engines.sidecars.values():
            assert [revision.digest for revision in each.store.revisions()] == [*digests]


@pytest.mark.parametrize(
    ("dies", "step"),
    [
        (3, f"stage.chunk:{COUNT // 2}"),  # in the middle of the transfer and of the chain
        (3, f"forward.chunk:{COUNT // 2}"),
        (1, "stage.reserved"),  # before it has answered
        (3, "stage.verified"),  # all have all chunks
        (7, "stage.committed"),  # the last one; its revision is there when it starts again
    ],
)
async def test_one_killed_in_a_chain_costs_the_others_no_byte_more(
    volume: Path, dies: int, step: str
) -> None:
    source = CountedSource(ADAPTER)
    sent: list[int] = []
    async with pool(volume, 8, dies=(dies, step)) as engines:
        results = await spread(source.payload(), engines.targets, LIMITS, sent.append)
        dead = results.pop(f"pod-{dies}")
        assert isinstance(dead, EngineUnreachable)
        assert len({revision_of(result).digest for result in results.values()}) == 1
        assert len(source.reads) == len(sent) == COUNT
        assert set(engines.taken().values()) == {len(ADAPTER.data)}


async def test_a_head_that_is_killed_costs_no_read_and_only_what_it_had_not_passed_on(
    volume: Path,
) -> None:
    sent: list[int] = []
    ahead = 8

    async def no_further(read: int) -> None:
        await until(lambda: read - engines.arrived("pod-3") < ahead or engines.dead())

    limits = replace(LIMITS, window_chunks=4 * ahead)

    source = CountedSource(ADAPTER, no_further)
    step = f"stage.chunk:{COUNT // 2}"
    async with pool(volume, 4, dies=(0, step)) as engines:
        results = await spread(source.payload(), engines.targets, limits, sent.append)
        assert isinstance(results.pop("pod-0"), EngineUnreachable)
        assert len({revision_of(result).digest for result in results.values()}) == 1
        assert set(engines.taken().values()) == {len(ADAPTER.data)}, "what arrived counts"
        assert sorted(source.reads) == [offset for offset, _ in ADAPTER.cuts()]
        assert COUNT <= len(sent) <= COUNT + 2 * ahead


def order(digest: str, adapter: SourceAdapter = ADAPTER, **changes: Any) -> pb.SendAdapterRequest:
    return pb.SendAdapterRequest(
        digest=digest,
        adapter=adapter.name,
        fingerprint=adapter.fingerprint,
        chunk_bytes=CHUNK,
        **changes,
    )


async def test_new_engines_are_filled_from_a_neighbour_without_a_byte_of_the_source(
    volume: Path,
) -> None:
    """Also of a source that was rewritten: its notes and its identity come along."""
    adapter = source_adapter(rank=64, dtype="F32")
    source = CountedSource(adapter)
    async with pool(volume, 4) as engines:
        first, *others = engines.targets
        staged = await spread(source.payload(), {first: engines.targets[first]}, LIMITS)
        digest = revision_of(staged[first]).digest
        sent: list[int] = []
        rest = {uid: engines.targets[uid] for uid in others}
        filled = await fill(order(digest, adapter), engines.targets[first].client, rest, 60)
        assert {revision_of(result).digest for result in filled.values()} == {digest}
        assert sorted(filled) == others
        image = revision_of(staged[first])
        for uid in others:
            [revision] = engines.sidecars[uid].store.revisions()
            assert (revision.size_bytes, revision.notes) == (image.size_bytes, tuple(image.notes))
        again = await spread(source.payload(), engines.targets, LIMITS, sent.append)
        assert {revision_of(result).digest for result in again.values()} == {digest}
        assert (len(source.reads), sent) == (len(adapter.cuts()), []), "the source is known there"
        assert engines.sidecars[first].store.drop(digest), "nothing keeps it any more"


async def test_what_is_being_sent_to_a_neighbour_is_not_evicted(volume: Path) -> None:
    async with pool(volume, 1) as engines:
        [uid] = engines.targets
        staged = await spread(CountedSource(ADAPTER).payload(), engines.targets, LIMITS)
        digest, store = revision_of(staged[uid]).digest, engines.sidecars[uid].store
        with store.lent(digest), store.lent(digest):
            assert not store.drop(digest)
        assert store.drop(digest)


async def spread_when_free(
    source: CountedSource, targets: Mapping[str, Target]
) -> dict[str, pb.StagedRevision | LorafleetError]:
    """Spread once those who were being filled have noticed that nobody fills them any more."""
    async with asyncio.timeout(60):
        while True:
            results = await spread(source.payload(), targets, LIMITS)
            if not any(isinstance(each, StagingBusy) for each in results.values()):
                return results
            await asyncio.sleep(0.05)


async def test_a_neighbour_that_dies_while_it_fills_others_leaves_them_what_it_sent(
    volume: Path,
) -> None:
    async with pool(volume, 3, dies=(0, f"forward.chunk:{COUNT // 2}")) as engines:
        donor = {"pod-0": engines.targets.pop("pod-0")}
        source = CountedSource(ADAPTER)
        staged = await spread(source.payload(), donor, LIMITS)
        digest = revision_of(staged["pod-0"]).digest
        broken = await fill(order(digest), donor["pod-0"].client, engines.targets, 60)
        assert all(isinstance(error, EngineUnreachable) for error in broken.values())
        results = await spread_when_free(source, engines.targets)
        assert {revision_of(result).digest for result in results.values()} == {digest}


async def test_a_neighbour_that_freezes_while_it_fills_others_is_not_waited_for(
    volume: Path,
) -> None:
    async with pool(volume, 3, dies=(0, "never")) as engines:
        donor = {"pod-0": engines.targets.pop("pod-0")}
        source = CountedSource(ADAPTER)
        staged = await spread(source.payload(), donor, LIMITS)
        digest = revision_of(staged["pod-0"]).digest
        assert engines.mortal is not None
        engines.mortal.send_signal(signal.SIGSTOP)
        broken = await fill(order(digest), donor["pod-0"].client, engines.targets, 3600)
        assert all("no sign of life" in str(error) for error in broken.values())
        results = await spread_when_free(source, engines.targets)
        assert {revision_of(result).digest for result in results.values()} == {digest}
        engines.mortal.kill()


async def test_a_revision_that_is_not_there_or_for_another_pod_is_refused(volume: Path) -> None:
    async with pool(volume, 2) as engines:
        target = {"pod-1": engines.targets["pod-1"]}
        donor = engines.targets["pod-0"].client
        lost = await fill(order("sha256:0"), donor, target, 60)
        assert str(lost["pod-1"]).endswith("sha256:0 is not staged in this pod")
        staged = await spread(
            CountedSource(ADAPTER).payload(), {"pod-0": engines.targets["pod-0"]}, LIMITS
        )
        digest = revision_of(staged["pod-0"]).digest
        stranger = await fill(order(digest), donor, {"pod-9": target["pod-1"]}, 60)
        assert "this sidecar is pod uid pod-1, the transfer is for pod-9" in str(stranger["pod-9"])
        assert engines.sidecars["pod-1"].store.revisions() == []


@pytest.mark.parametrize("place", [0, 1, 3], ids=["head", "middle", "last"])
async def test_a_frozen_sidecar_is_left_out_and_those_behind_it_are_served(
    volume: Path, place: int
) -> None:
    """Its connections stay open; the one behind it ends the silent stream for the next."""
    witness = "pod-2" if place == 3 else "pod-3"

    async def freeze(read: int) -> None:
        if read == COUNT // 2:
            await until(lambda: engines.arrived(witness) > 0)
            assert engines.mortal is not None
            engines.mortal.send_signal(signal.SIGSTOP)

    source, sent = CountedSource(ADAPTER, freeze), list[int]()
    async with pool(volume, 4, dies=(place, "never")) as engines:
        results = await spread(source.payload(), engines.targets, LIMITS, sent.append)
        frozen = results.pop(f"pod-{place}")
        assert isinstance(frozen, EngineUnreachable)
        assert "gave no sign of life" in str(frozen)
        assert len({revision_of(result).digest for result in results.values()}) == 1
        assert set(engines.taken().values()) == {len(ADAPTER.data)}, "what arrived counts"
        if place:
            assert len(source.reads) == len(sent) == COUNT
        assert engines.mortal is not None
        engines.mortal.kill()


@pytest.mark.parametrize("place", [0, 2], ids=["the operator's", "a sidecar's"])
async def test_a_link_that_is_slow_and_uneven_is_waited_for(volume: Path, place: int) -> None:
    """Each chunk takes longer there than a process may take to give a sign of life."""
    adapter = source_adapter(rank=8)
    source, sent = CountedSource(adapter), list[int]()
    async with pool(volume, 4) as engines:
        uid = f"pod-{place}"
        port = engines.targets[uid].client.port
        async with slow_link(port, bytes_per_second=CHUNK / 0.6, jitter=0.2) as slow:
            client = SidecarClient("127.0.0.1", slow)
            targets = {**engines.targets, uid: replace(engines.targets[uid], client=client)}
            results = await spread(source.payload(), targets, LIMITS, sent.append)
            await client.close()
        assert len({revision_of(result).digest for result in results.values()}) == 1
        assert len(source.reads) == len(sent) == len(adapter.cuts()) > 3
        assert set(engines.taken().values()) == {len(adapter.data)}
