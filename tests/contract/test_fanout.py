"""Chains of real sidecars: how often bytes are read and sent, counted; no clock is looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanout_rig import CountedSource, pool
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from lorafleet_operator.transfer.fanout import spread
from lorafleet_operator.transfer.streaming import Limits
from staging_builders import source_adapter

if TYPE_CHECKING:
    from pathlib import Path

LIMITS = Limits(window_chunks=4, stall_seconds=10, commit_seconds=30)


async def test_a_chain_of_eight_is_read_once_and_sent_once(volume: Path) -> None:
    source = CountedSource(source_adapter())
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
