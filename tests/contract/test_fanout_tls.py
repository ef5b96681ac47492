"""Who may get an adapter from a sidecar: sidecars of its own pool, by their certificates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from certificates import Authority
from fanout_rig import CHUNK, CountedSource, pool
from lorafleet.certificates import CertificateFiles
from lorafleet.errors import EngineUnreachable
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from lorafleet_operator.transfer.client import Tls
from lorafleet_operator.transfer.fanout import fill, spread
from lorafleet_operator.transfer.streaming import Limits
from sidecar_rig import Rig
from staging_builders import source_adapter

if TYPE_CHECKING:
    from pathlib import Path

LIMITS = Limits(window_chunks=4, stall_seconds=60, commit_seconds=60)
ADAPTER = source_adapter(rank=64)
POOL = "engines.team-a.lorafleet"


@pytest.fixture
def tls(volume: Path) -> dict[str, Any]:
    """Certificates of one authority: the pool's, another pool's, the operator's."""
    authority = Authority("fleet")
    authority.write(volume / "tls", "sidecar", POOL)
    authority.write(volume / "other", "sidecar", "engines.team-b.lorafleet")
    authority.write(volume / "operator", "operator")
    return {
        "tls": Tls(CertificateFiles(volume / "operator").current()),
        "certificates": CertificateFiles(volume / "tls"),
    }


async def test_sidecars_of_one_pool_pass_on_over_mutual_tls(
    volume: Path, tls: dict[str, Any]
) -> None:
    source, sent = CountedSource(ADAPTER), list[int]()
    async with pool(volume, 3, peer_name=POOL, **tls) as engines:
        results = await spread(source.payload(), engines.targets, LIMITS, sent.append)
        assert all(isinstance(result, pb.StagedRevision) for result in results.values())
        assert len(sent) == len(source.reads) == len(ADAPTER.cuts())


async def test_a_sidecar_of_another_pool_is_given_nothing_whoever_names_it(
    volume: Path, tls: dict[str, Any]
) -> None:
    stranger = {"pod-1": {"certificates": CertificateFiles(volume / "other")}}
    async with pool(volume, 3, own=stranger, peer_name=POOL, **tls) as engines:
        results = await spread(CountedSource(ADAPTER).payload(), engines.targets, LIMITS)
        assert isinstance(results["pod-1"], EngineUnreachable)
        digest = results["pod-0"].digest  # type: ignore[union-attr]
        assert results["pod-2"].digest == digest  # type: ignore[union-attr]
        order = pb.SendAdapterRequest(
            digest=digest, adapter="a/b", fingerprint="x", chunk_bytes=CHUNK
        )
        target = {"pod-1": engines.targets["pod-1"]}
        refused = await fill(order, engines.targets["pod-0"].client, target, 60)
        assert isinstance(refused["pod-1"], EngineUnreachable)
        assert engines.taken()["pod-1"] == 0


async def test_without_a_name_for_its_neighbours_a_sidecar_sends_none_anything(
    volume: Path, tls: dict[str, Any]
) -> None:
    async with pool(volume, 2, **tls) as engines:
        donor = {"pod-0": engines.targets.pop("pod-0")}
        results = await spread(CountedSource(ADAPTER).payload(), donor, LIMITS)
        order = pb.SendAdapterRequest(
            digest=results["pod-0"].digest,  # type: ignore[union-attr]
            adapter="a/b",
            fingerprint="x",
            chunk_bytes=CHUNK,
        )
        refused = await fill(order, donor["pod-0"].client, engines.targets, 60)
        assert "LORAFLEET_PEER_NAME" in str(refused["pod-1"])
        assert engines.taken()["pod-1"] == 0


@pytest.mark.parametrize(("peer_name", "forwards"), [("", False), (POOL, True)])
async def test_the_inventory_says_whether_transfers_are_passed_on(
    volume: Path, tls: dict[str, Any], peer_name: str, forwards: bool
) -> None:
    async with Rig(volume, tls_dir=volume / "tls", peer_name=peer_name) as rig:
        assert rig.sidecar.agent.board.current.forwards is forwards
