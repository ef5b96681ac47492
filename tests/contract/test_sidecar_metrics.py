"""The metrics endpoint of a running sidecar, and the pages for the kubelet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import httpx
import pytest
from fake_engine import Behaviour
from lorafleet_sidecar.metrics import TABLE
from prometheus_client.parser import text_string_to_metric_families
from sidecar_rig import ARENA_BYTES, Rig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from prometheus_client.core import Metric


@pytest.fixture
async def rig(volume: Path) -> AsyncIterator[Rig]:
    async with Rig(volume, Behaviour(workers=2)) as running:
        yield running


async def get(rig: Rig, path: str) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as client:
        return await client.get(f"http://127.0.0.1:{rig.sidecar.metrics_port}{path}")


async def scrape(rig: Rig) -> dict[str, Metric]:
    text = (await get(rig, "/metrics")).text
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(families: dict[str, Metric], name: str, **labels: str) -> float:
    (sample,) = [each for each in families[name].samples if each.labels == labels]
    return sample.value


async def test_values_are_those_of_the_moment_of_the_scrape(rig: Rig) -> None:
    await rig.load(rig.put(1))
    rig.put(2)
    families = await scrape(rig)
    staging = "lorafleet_sidecar_staging"
    assert value(families, staging + "_bytes", state="used") == 4 << 20
    assert value(families, staging + "_in_use_bytes") == 2 << 20
    assert value(families, staging + "_limit_bytes") == ARENA_BYTES
    assert value(families, "lorafleet_engine_adapters", tier="gpu") == 1
    assert value(families, "lorafleet_engine_adapters", tier="staged") == 1
    sizes = {
        tuple(s.labels.values()): s.value
        for s in families["lorafleet_sidecar_revision_bytes"].samples
    }
    assert set(sizes) == {("team-a", "gpu"), ("team-a", "staged")}
    assert sum(sizes.values()) == sum(each.size_bytes for each in rig.sidecar.store.revisions())
    assert value(families, "lorafleet_engine_health", state="ready") == 1
    assert value(families, "lorafleet_engine_health", state="stock") == 0
    requests = "lorafleet_sidecar_engine_requests"
    assert value(families, requests, operation="load", outcome="ok") == 1
    rig.put(3)
    assert value(await scrape(rig), staging + "_bytes", state="used") == 6 << 20


async def test_each_worker_rank_has_its_own_series(rig: Rig) -> None:
    await rig.load(rig.put(1))
    families = await scrape(rig)
    for rank in ("0", "1"):
        assert value(families, "lorafleet_engine_loads", rank=rank) == 1
        assert value(families, "lorafleet_engine_slot_bytes", rank=rank) == 1 << 20
        assert value(families, "lorafleet_engine_weights_bytes", rank=rank) == 5 << 20
        assert value(families, "lorafleet_engine_kv_cache_bytes", rank=rank) == 3 << 20
        assert value(families, "lorafleet_engine_phase_seconds", rank=rank, phase="fill") == 0.25


async def test_failures_are_counted_by_their_reason(rig: Rig) -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        await rig.load("sha256:" + "0" * 64)
    requests = "lorafleet_sidecar_engine_requests"
    families = await scrape(rig)
    assert value(families, requests, operation="load", outcome="TransferInterrupted") == 1


async def test_the_endpoint_shows_exactly_the_table(rig: Rig) -> None:
    families = await scrape(rig)
    assert set(families) == {series.name for series in TABLE}


async def test_no_series_carries_an_adapters_name(rig: Rig) -> None:
    await rig.load(rig.put(1), "team-a/telltale")
    assert "telltale" not in (await get(rig, "/metrics")).text


async def test_the_kubelet_gets_its_pages(rig: Rig) -> None:
    assert (await get(rig, "/healthz")).text == "ok\n"
    assert (await get(rig, "/readyz")).text == "engine ready\n"
    assert (await get(rig, "/elsewhere")).status_code == 404
