"""The series of pools: what the last pass saw, for the pools that are this operator's."""

from __future__ import annotations

from lorafleet_operator.pool_series import PoolSeries, TenantFigures
from prometheus_client import CollectorRegistry, generate_latest

PREFIX = "lorafleet_operator_"


def lines(series: PoolSeries) -> set[str]:
    registry = CollectorRegistry()
    registry.register(series)
    text = generate_latest(registry).decode()
    return {line.removeprefix(PREFIX) for line in text.splitlines() if line.startswith(PREFIX)}


def test_each_pool_tells_of_its_engines_and_tenants_and_a_gone_one_of_nothing() -> None:
    series = PoolSeries()
    series.show("ns/a", {"Warm": 1, "Recycling": 1}, 3, 2, {"e-0": True, "e-1": False})
    tenants = [
        TenantFigures("search", 2, 500, 1000, 100, 50, throttled=True),
        TenantFigures("team-b", 1, 10, None, 0, 0, throttled=False),
    ]
    series.show_tenants("ns/a", tenants)
    series.show("ns/gone", {"Warm": 7}, 0, 0, {})
    series.keep({"ns/a"})
    pool = 'name="a",namespace="ns"'
    assert lines(series) == {
        f'pool_engines{{{pool},traffic="Warm"}} 1.0',
        f'pool_engines{{{pool},traffic="Recycling"}} 1.0',
        f"pool_recycles_total{{{pool}}} 3.0",
        f"pool_engines_due{{{pool}}} 2.0",
        f'engine_reachable{{engine="e-0",{pool}}} 1.0',
        f'engine_reachable{{engine="e-1",{pool}}} 0.0',
        f'tenant_adapters{{{pool},tenant="search"}} 2.0',
        f'tenant_adapters{{{pool},tenant="team-b"}} 1.0',
        f'tenant_staged_bytes{{{pool},tenant="search"}} 500.0',
        f'tenant_staged_bytes{{{pool},tenant="team-b"}} 10.0',
        f'tenant_staged_quota_bytes{{{pool},tenant="search"}} 1000.0',
        f'tenant_pinned_bytes{{{pool},tenant="search"}} 100.0',
        f'tenant_pinned_bytes{{{pool},tenant="team-b"}} 0.0',
        f'tenant_guaranteed_bytes{{{pool},tenant="search"}} 50.0',
        f'tenant_guaranteed_bytes{{{pool},tenant="team-b"}} 0.0',
        f'tenant_throttled{{{pool},tenant="search"}} 1.0',
        f'tenant_throttled{{{pool},tenant="team-b"}} 0.0',
    }


def test_later_passes_replace_what_earlier_ones_said() -> None:
    series = PoolSeries()
    series.show("ns/a", {"Warm": 2}, 0, 0, {"e-0": True, "e-1": True})
    series.show_tenants("ns/a", [TenantFigures("t", 1, 1, None, 0, 0, throttled=False)])
    series.show("ns/a", {"Warm": 1}, 0, 0, {"e-0": True})
    series.show_tenants("ns/a", [])
    assert not any("e-1" in line or "tenant" in line for line in lines(series))
