"""The operator's client, streaming and links against the real sidecar and its transfer service."""

from __future__ import annotations

import asyncio
import tracemalloc
from typing import TYPE_CHECKING

import pytest
from certificates import Authority
from fake_engine import Behaviour
from lorafleet.certificates import CertificateFiles
from lorafleet.errors import (
    AdapterRejected,
    EngineUnreachable,
    LorafleetError,
    SourceUnavailable,
    StagingError,
    TransferInterrupted,
)
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from lorafleet_operator.transfer.client import SidecarClient
from lorafleet_operator.transfer.links import Endpoint, EngineLink, Links
from lorafleet_operator.transfer.streaming import Limits, Payload, stage
from lorafleet_sidecar.transfer_service import TransferSettings
from processes import free_port
from sidecar_rig import Rig
from staging_builders import SourceAdapter, source_adapter
from staging_server import serving
from waiting import until

if TYPE_CHECKING:
    from pathlib import Path

CHUNK = 64 << 10
LIMITS = Limits(window_chunks=4, stall_seconds=60, commit_seconds=60)


class Source:
    """An adapter's data, counting what is read of it."""

    def __init__(self, adapter: SourceAdapter, breaks_at: int = 1 << 60) -> None:
        self.adapter = adapter
        self.breaks_at = breaks_at
        self.reads: list[int] = []

    async def read(self, offset: int, length: int) -> bytes:
        if offset >= self.breaks_at:
            raise SourceUnavailable("the source broke off")
        self.reads.append(offset)
        return self.adapter.data[offset : offset + length]

    def payload(self) -> Payload:
        return Payload(self.adapter.manifest(CHUNK), self.adapter.cuts(CHUNK), self.read)


def committed(result: pb.StagedRevision | LorafleetError) -> pb.StagedRevision:
    assert isinstance(result, pb.StagedRevision), result
    return result


async def test_three_engines_get_the_content_from_one_read_of_the_source(volume: Path) -> None:
    source = Source(source_adapter())
    sent: list[int] = []
    async with (
        serving(volume / "a") as a,
        serving(volume / "b") as b,
        serving(volume / "c") as c,
    ):
        clients = {str(s.port): SidecarClient("127.0.0.1", s.port) for s in (a, b, c)}
        results = await stage(source.payload(), clients, LIMITS, on_sent=sent.append)
        digests = {committed(result).digest for result in results.values()}
        assert len(digests) == 1
        cuts = source.adapter.cuts(CHUNK)
        assert source.reads == [offset for offset, _ in cuts]
        assert len(sent) == 3 * len(cuts)
        again = await stage(source.payload(), clients, LIMITS, on_sent=sent.append)
        assert {committed(result).digest for result in again.values()} == digests
        assert len(source.reads) == len(cuts), "present content is not read again"
        for client in clients.values():
            await client.close()


async def test_a_broken_source_is_the_sources_fault_and_the_next_try_sends_only_the_rest(
    volume: Path,
) -> None:
    adapter = source_adapter()
    cuts = adapter.cuts(CHUNK)
    broken = Source(adapter, breaks_at=cuts[len(cuts) // 2][0])
    async with serving(volume / "a") as running:
        client = SidecarClient("127.0.0.1", running.port)
        with pytest.raises(SourceUnavailable, match="broke off"):
            await stage(broken.payload(), {"a": client}, LIMITS)
        await until(lambda: running.store.stagings())
        whole = Source(adapter)
        while True:  # the sidecar may still be closing the first stream
            result = (await stage(whole.payload(), {"a": client}, LIMITS))["a"]
            if not isinstance(result, StagingError):
                break
        committed(result)
        assert 0 < len(whole.reads) < len(cuts)
        await client.close()


async def test_a_sidecar_that_gave_up_on_a_slow_source_says_so(volume: Path) -> None:
    """The stream is over by the time that the next chunk has come."""
    source = Source(source_adapter())
    async with serving(volume / "a", settings=TransferSettings(stall_seconds=0.2)) as running:

        async def slow(offset: int, length: int) -> bytes:
            await until(lambda: running.store.stagings())
            await asyncio.sleep(0.6)
            return await source.read(offset, length)

        client = SidecarClient("127.0.0.1", running.port)
        payload = Payload(source.payload().manifest, source.payload().plan, slow)
        result = (await stage(payload, {"a": client}, LIMITS))["a"]
        assert isinstance(result, TransferInterrupted | StagingError)
        assert str(result) == "nothing arrived for 0.2 s; send the manifest again to resume"
        await client.close()


async def test_stripes_over_receiver_processes_give_the_same_revision(volume: Path) -> None:
    source = Source(source_adapter())
    async with (
        serving(volume / "plain") as plain,
        serving(volume / "striped", settings=TransferSettings(receivers=2)) as striped,
    ):
        clients = {str(s.port): SidecarClient("127.0.0.1", s.port) for s in (plain, striped)}
        results = await stage(source.payload(), clients, LIMITS)
        assert len({committed(result).digest for result in results.values()}) == 1
        assert len(source.reads) == len(source.adapter.cuts(CHUNK))
        for client in clients.values():
            await client.close()


async def test_an_engine_that_is_away_leaves_the_transfer_and_the_other_goes_on(
    volume: Path,
) -> None:
    source = Source(source_adapter())
    async with serving(volume / "a") as running:
        clients = {
            "a": SidecarClient("127.0.0.1", running.port),
            "away": SidecarClient("127.0.0.1", 1),
        }
        results = await stage(source.payload(), clients, LIMITS)
        committed(results["a"])
        assert isinstance(results["away"], EngineUnreachable)
        for client in clients.values():
            await client.close()


async def test_wrong_bytes_are_refused_with_the_sidecars_own_reason(volume: Path) -> None:
    adapter = source_adapter()
    source = Source(adapter)

    async def nan(offset: int, length: int) -> bytes:
        return b"\xff" * length

    payload = Payload(adapter.manifest(CHUNK), adapter.cuts(CHUNK), nan)
    async with serving(volume / "a") as running:
        client = SidecarClient("127.0.0.1", running.port)
        result = (await stage(payload, {"a": client}, LIMITS))["a"]
        assert isinstance(result, AdapterRejected)
        assert result.terminal
        assert "non-finite" in str(result) or "not finite" in str(result)
        assert source.reads == []
        await client.close()


async def test_a_sidecar_that_wants_chunks_beyond_the_plan_is_not_obeyed(volume: Path) -> None:
    adapter = source_adapter()
    payload = Payload(adapter.manifest(CHUNK), adapter.cuts(CHUNK)[:2], Source(adapter).read)
    async with serving(volume / "a") as running:
        client = SidecarClient("127.0.0.1", running.port)
        result = (await stage(payload, {"a": client}, LIMITS))["a"]
        assert isinstance(result, TransferInterrupted)
        assert "the plan has 2 chunks" in str(result)
        await client.close()


async def test_memory_is_bounded_by_the_window_not_by_the_adapter(volume: Path) -> None:
    adapter = source_adapter(layers=8, width=16384, rank=32)
    assert len(adapter.data) > 400 * CHUNK
    payload = Source(adapter).payload()
    held = peak = 0

    async def read(offset: int, length: int) -> bytes:
        nonlocal held, peak
        held += 1
        peak = max(peak, held)
        await asyncio.sleep(0)
        return adapter.data[offset : offset + length]

    def sent(_: int) -> None:
        nonlocal held
        held -= 1

    async with serving(volume / "a", limit=128 << 20, profile=_wide) as running:
        client = SidecarClient("127.0.0.1", running.port)
        tracemalloc.start()
        result = (
            await stage(Payload(payload.manifest, payload.plan, read), {"a": client}, LIMITS, sent)
        )["a"]
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        committed(result)
        # The queue, the reads ahead, one chunk in the feeder's hand and one in the sender's.
        assert peak <= LIMITS.window_chunks + 3
        # And what a sidecar's check of the image takes, whatever that is long.
        assert most < len(adapter.data) / 4
        await client.close()


def _wide():  # type: ignore[no-untyped-def]
    from staging_builders import engine_profile

    return engine_profile(layers=8, width=16384)


def _link(
    rig: Rig, uid: str, certificates: CertificateFiles | None = None
) -> tuple[EngineLink, list[object]]:
    changes: list[object] = []
    link = EngineLink(
        Endpoint("team-a/engine-0", uid, "127.0.0.1", rig.sidecar.port),
        certificates=certificates,
        heartbeat_seconds=0.2,
        on_change=lambda link, _: changes.append(link.inventory),
    )
    return link, changes


async def test_a_link_follows_the_inventory_and_learns_the_profile(volume: Path) -> None:
    async with Rig(volume) as rig:
        link, changes = _link(rig, "pod-1")
        task = asyncio.create_task(link.run())
        await until(lambda: link.profile is not None)
        assert link.in_contact
        digest = rig.put(1)
        await rig.load(digest)
        await until(lambda: link.inventory is not None and link.inventory.loaded)
        assert link.inventory is not None
        assert [entry.digest for entry in link.inventory.loaded] == [digest]
        assert len(changes) >= 2
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await link.close()


async def test_a_link_forgets_the_oldest_of_what_it_learned(volume: Path) -> None:
    async with Rig(volume) as rig:
        link, _ = _link(rig, "pod-1")
        for number in range(5000):
            link.learn(f"fp-{number}", "sha256:" + "0" * 64)
        assert len(link.digests) < 5000
        assert "fp-0" not in link.digests
        assert "fp-4999" in link.digests
        await link.close()


async def test_a_link_refuses_the_sidecar_of_another_pod(volume: Path) -> None:
    async with Rig(volume) as rig:
        link, _ = _link(rig, "pod-2")
        task = asyncio.create_task(link.run())
        await link.tried.wait()
        await until(lambda: "pod uid" in link.problem)
        assert link.problem.endswith("is pod uid pod-1, expected pod-2 of team-a/engine-0")
        assert link.inventory is None
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await link.close()


async def test_a_link_notices_a_loss_and_comes_back(volume: Path) -> None:
    async with Rig(volume, listen=f"127.0.0.1:{free_port()}") as rig:
        link, _ = _link(rig, "pod-1")
        task = asyncio.create_task(link.run())
        await until(lambda: link.in_contact)
        await rig.stop_sidecar()
        await until(lambda: not link.in_contact)
        assert link.inventory is not None, "the last inventory stays"
        await rig.start_sidecar()
        await until(lambda: link.in_contact)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await link.close()


async def test_a_link_uses_mutual_tls_and_follows_rotated_certificates(volume: Path) -> None:
    def issue(authority: Authority) -> None:
        authority.write(volume / "sidecar", "sidecar")
        authority.write(volume / "operator", "operator")

    issue(Authority("fleet"))
    listen = f"127.0.0.1:{free_port()}"
    async with Rig(volume, tls_dir=volume / "sidecar", listen=listen) as rig:
        link, _ = _link(rig, "pod-1", CertificateFiles(volume / "operator"))
        task = asyncio.create_task(link.run())
        await until(lambda: link.in_contact)
        issue(Authority("fleet of next year"))
        await rig.stop_sidecar()
        await until(lambda: not link.in_contact)
        await rig.start_sidecar()
        await until(lambda: link.in_contact)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await link.close()


async def test_links_follow_pods_and_keep_one_that_left_its_pool_while_adapters_are_loaded(
    volume: Path,
) -> None:
    async with Rig(volume) as rig:
        links = Links(heartbeat_seconds=1, on_change=lambda *_: None)
        endpoint = Endpoint("team-a/engine-0", "pod-1", "127.0.0.1", rig.sidecar.port)
        links.sync([endpoint], {"pod-1"})
        await rig.load(rig.put(1))
        await until(
            lambda: (link := links.get("pod-1")) and link.inventory and link.inventory.loaded
        )
        links.sync([], {"pod-1"})
        assert links.get("pod-1") is not None
        await rig.unload()
        link = links.get("pod-1")
        assert link is not None
        await link.refresh()
        links.sync([], {"pod-1"})
        assert links.get("pod-1") is None
        await links.close()


async def test_unary_errors_carry_the_sidecars_reason_and_silence_is_unreachable(
    volume: Path,
) -> None:
    async with Rig(volume) as rig:
        client = SidecarClient("127.0.0.1", rig.sidecar.port)
        with pytest.raises(StagingError, match="is not staged in this pod"):
            await client.load(
                pb.LoadAdapterRequest(
                    adapter="team-a/sql",
                    served_name="team-a/sql",
                    digest="sha256:0",
                    loader="direct",
                ),
                10,
            )
        assert (await client.profile(10)).base_model == "tiny/qwen3-dense"
        await client.unload(pb.UnloadAdapterRequest(adapter="a/b", served_name="a/b"), 10)
        await rig.stop_sidecar()
        with pytest.raises(EngineUnreachable, match="UNAVAILABLE"):
            await client.inventory(60)
        await client.close()
        await rig.start_sidecar()


async def test_what_waits_for_a_sidecar_whose_connection_is_closed_ends_with_an_error_of_its_own(
    volume: Path,
) -> None:
    """A pod that goes closes it under orders and transfers; who is not told to end goes on."""
    behaviour = Behaviour()
    async with Rig(volume / "a", behaviour) as a, Rig(volume / "b", pod_uid="b") as b:
        client = SidecarClient("127.0.0.1", a.sidecar.port)
        request = pb.LoadAdapterRequest(
            adapter="team-a/sql", served_name="team-a/sql", digest=a.put(1), loader="direct"
        )
        behaviour.loads_go_on.clear()
        order = asyncio.create_task(client.load(request, 60.0))
        cut = asyncio.create_task(client.load(request, 60.0))
        await until(lambda: a.engine.loads)
        cut.cancel()
        await client.close()
        with pytest.raises(EngineUnreachable, match="the connection was closed"):
            await order
        with pytest.raises(asyncio.CancelledError):
            await cut
        behaviour.loads_go_on.set()

        source, first = Source(source_adapter()), asyncio.Event()
        clients = {
            name: SidecarClient("127.0.0.1", rig.sidecar.port) for name, rig in (("a", a), ("b", b))
        }
        gate = asyncio.Event()

        async def read(offset: int, length: int) -> bytes:
            if source.reads:
                first.set()
                await gate.wait()
            return await source.read(offset, length)

        payload = Payload(source.adapter.manifest(CHUNK), source.adapter.cuts(CHUNK), read)
        work = asyncio.create_task(stage(payload, clients, LIMITS))
        await first.wait()
        await clients["a"].close()
        gate.set()
        async with asyncio.timeout(30):
            results = await work
        assert isinstance(results["a"], LorafleetError)
        assert committed(results["b"]).digest
        await clients["b"].close()
