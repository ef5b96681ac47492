"""A tenth of an adapter changes: from the operator to every sidecar of a chain goes that tenth."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from fanout_rig import CHUNK, CountedSource, pool
from lorafleet.errors import EngineUnreachable
from lorafleet.header import parse_header
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from lorafleet_operator.payload import payload_of
from lorafleet_operator.push.incoming import Incoming
from lorafleet_operator.push.revision import described
from lorafleet_operator.sources.bounds import SourceSettings
from lorafleet_operator.sources.pushed import hex_of
from lorafleet_operator.transfer.fanout import spread
from lorafleet_operator.transfer.streaming import Limits, Payload
from operator_builders import facts
from spool_builders import end, source, spool
from staging_builders import changed, digests, source_adapter

if TYPE_CHECKING:
    from pathlib import Path

    from staging_builders import SourceAdapter

LIMITS = Limits(window_chunks=4, stall_seconds=60, commit_seconds=60)
LAYERS = 10
ADAPTER = source_adapter(layers=LAYERS)
SIZE = len(ADAPTER.data)
TENTH = [3, 14, 25, 36]
NEWER = changed(ADAPTER, TENTH)
CUTS = sorted({cut for tensor in TENTH for cut in (tensor, tensor + 1)})


def payload(adapter: SourceAdapter) -> Payload:
    return CountedSource(adapter).payload(tensor_digests=digests(adapter), cut_before=CUTS)


async def digest_of(volume: Path) -> str:
    """Return what the newer one is when it comes whole."""
    async with pool(volume / "whole", 1, layers=LAYERS) as engines:
        [result] = (await spread(payload(NEWER), engines.targets, LIMITS)).values()
        assert isinstance(result, pb.StagedRevision), result
        return result.digest


@pytest.mark.parametrize(("count", "receivers"), [(3, 0), (1, 2)])
async def test_a_tenth_is_read_once_and_sent_once(volume: Path, count: int, receivers: int) -> None:
    """To a chain on one stream, to a single one in stripes."""
    sent: list[int] = []
    async with pool(volume, count, layers=LAYERS, receivers=receivers) as engines:
        await spread(payload(ADAPTER), engines.targets, LIMITS)
        results = await spread(payload(NEWER), engines.targets, LIMITS, sent.append)
        assert sum(sent) <= 0.15 * SIZE
        assert {getattr(each, "digest", each) for each in results.values()} == {
            await digest_of(volume)
        }
        assert engines.taken() == dict.fromkeys(engines.targets, SIZE + SIZE // 10)


async def test_who_has_no_earlier_revision_gets_all_of_it_and_the_others_their_tenth(
    volume: Path,
) -> None:
    sent: list[int] = []
    async with pool(volume, 3, layers=LAYERS) as engines:
        some = {uid: engines.targets[uid] for uid in ("pod-0", "pod-2")}
        await spread(payload(ADAPTER), some, LIMITS)
        before = engines.taken()
        results = await spread(payload(NEWER), engines.targets, LIMITS, sent.append)
        assert SIZE <= sum(sent) <= 1.01 * SIZE
        taken = {uid: size - before[uid] for uid, size in engines.taken().items()}
        assert taken == {"pod-0": SIZE // 10, "pod-1": SIZE, "pod-2": SIZE // 10}
        assert {getattr(each, "digest", each) for each in results.values()} == {
            await digest_of(volume)
        }


async def test_one_that_dies_while_it_copies_costs_the_others_nothing(volume: Path) -> None:
    sent: list[int] = []
    async with pool(volume, 3, layers=LAYERS) as engines:
        await spread(payload(ADAPTER), engines.targets, LIMITS)
    step = "reuse.copied:5"
    async with pool(volume, 3, layers=LAYERS, dies=(1, step)) as engines:
        results = await spread(payload(NEWER), engines.targets, LIMITS, sent.append)
        assert isinstance(results.pop("pod-1"), EngineUnreachable)
        assert sum(sent) <= 0.15 * SIZE
        assert {getattr(each, "digest", each) for each in results.values()} == {
            await digest_of(volume)
        }


async def test_wherever_the_disk_has_it_only_what_changed_is_sent_on(
    volume: Path, tmp_path: Path
) -> None:
    """Push after push: what is still of use of old files moves to new ones meanwhile."""
    there, key = spool(tmp_path, 64 << 20, 64 << 20), "team-a/rl"
    adapter, taken, moved = ADAPTER, [0], 0
    async with pool(volume, 1, layers=LAYERS) as engines:
        for step in range(14):
            if step:
                adapter = changed(adapter, range(step % 10, 4 * LAYERS, 10), seed=100 + step)
            told = described(
                adapter.header, adapter.config, digests(adapter), adapter=key,
                settings=SourceSettings(),
            )  # fmt: skip
            incoming = Incoming(there, key, told)
            incoming.open(set())
            moved += len(incoming._moving)
            for index in incoming.missing:
                tensor = parse_header(adapter.header).tensors[index]
                incoming.write(index, 0, adapter.data[tensor.begin : tensor.end])
            incoming.commit()
            there.settle(key, {f"{key}/{hex_of(told.revision)}"})
            end(there, key, incoming)
            content = await source(tmp_path, key, told.revision).resolve()
            made = payload_of(facts(), content, CHUNK, reuse=True)
            await spread(made, engines.targets, LIMITS)
            taken.append(sum(engines.taken().values()))
    assert moved
    assert [after - before for before, after in pairwise(taken)] == [SIZE, *[SIZE // 10] * 13]
