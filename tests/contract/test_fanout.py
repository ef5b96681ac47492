"""Chains of real sidecars: how often bytes are read and sent, counted; no clock is looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from fanout_rig import CountedSource, pool
from lorafleet.errors import EngineUnreachable, LorafleetError
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from lorafleet_operator.transfer.fanout import spread
from lorafleet_operator.transfer.streaming import Limits
from sidecar_rig import until
from staging_builders import source_adapter

if TYPE_CHECKING:
    from pathlib import Path

LIMITS = Limits(window_chunks=4, stall_seconds=10, commit_seconds=30)
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


async def test_a_head_that_is_killed_costs_only_what_it_had_not_passed_on(volume: Path) -> None:
    sent: list[int] = []
    ahead = 8

    async def no_further(read: int) -> None:
        await until(lambda: read - engines.arrived("pod-3") < ahead or engines.dead())

    source = CountedSource(ADAPTER, no_further)
    step = f"stage.chunk:{COUNT // 2}"
    async with pool(volume, 4, dies=(0, step)) as engines:
        results = await spread(source.payload(), engines.targets, LIMITS, sent.append)
        assert isinstance(results.pop("pod-0"), EngineUnreachable)
        assert len({revision_of(result).digest for result in results.values()}) == 1
        assert set(engines.taken().values()) == {len(ADAPTER.data)}, "what arrived counts"
        assert COUNT <= len(source.reads) <= COUNT + 2 * ahead
