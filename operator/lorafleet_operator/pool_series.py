"""The series of all pools: their engines, tenants and recycles, as the last pass over each saw them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from prometheus_client import Metric

_POOL: Final = ("namespace", "name")


@dataclass(frozen=True)
class TenantFigures:
    """What one tenant of a pool has; bytes are arena bytes of the engine with the most of them."""

    tenant: str
    """Name of the entry in spec.tenants; of `*` the namespace."""
    adapters: int
    staged_bytes: int
    staged_quota: int | None
    pinned_bytes: int
    guaranteed_bytes: int
    throttled: bool


@dataclass
class _Shown:
    traffic: Mapping[str, int] = field(default_factory=dict)
    recycles: int = 0
    due: int = 0
    reachable: Mapping[str, bool] = field(default_factory=dict)
    tenants: Sequence[TenantFigures] = ()


_FAMILIES: Final[dict[str, tuple[type[CounterMetricFamily | GaugeMetricFamily], str, str]]] = {
    "pool_engines": (
        GaugeMetricFamily,
        "traffic",
        "Engines of a pool by whether they take traffic: the values of engines[].traffic.",
    ),
    "pool_recycles": (
        CounterMetricFamily,
        "",
        "Engines of a pool that were started again by its rule and came back.",
    ),
    "pool_engines_due": (
        GaugeMetricFamily,
        "",
        "Engines of a pool that are to be started again by its rule and wait or are about to be.",
    ),
    "engine_reachable": (
        GaugeMetricFamily,
        "engine",
        "1 for each engine of a pool whose sidecar answers the operator, 0 for the others; engine is the pod's name.",
    ),
    "tenant_adapters": (
        GaugeMetricFamily,
        "tenant",
        "Adapters with engines of each tenant in the pool's status.tenants (50 at most); of the tenant * it is the namespace.",
    ),
    "tenant_staged_bytes": (
        GaugeMetricFamily,
        "tenant",
        "Arena bytes of a tenant's adapters on the engine that has most of them.",
    ),
    "tenant_staged_quota_bytes": (
        GaugeMetricFamily,
        "tenant",
        "The most that the tenant may have there; no sample without a quota.",
    ),
    "tenant_pinned_bytes": (
        GaugeMetricFamily,
        "tenant",
        "Arena bytes of a tenant's adapters that keep a slot, on the engine that has most of them.",
    ),
    "tenant_guaranteed_bytes": (
        GaugeMetricFamily,
        "tenant",
        "Arena bytes that every engine keeps for the tenant.",
    ),
    "tenant_throttled": (
        GaugeMetricFamily,
        "tenant",
        "1 for a tenant whose loads wait for its loadsPerMinute.",
    ),
}


class PoolSeries(Collector):
    """What is shown of the pools; passes set it, scrapes read it from any thread."""

    def __init__(self) -> None:
        self._shown: dict[str, _Shown] = {}

    def show(
        self,
        key: str,
        traffic: dict[str, int],
        recycles: int,
        due: int,
        reachable: Mapping[str, bool],
    ) -> None:
        """Set what the series of the pool `<namespace>/<name>` say of its engines.

        traffic: how many by their state; due: how many are to be recycled; reachable: by pod name.
        """
        found = self._shown.setdefault(key, _Shown())
        found.traffic, found.recycles, found.due = traffic, recycles, due
        found.reachable = reachable

    def show_tenants(self, key: str, tenants: Sequence[TenantFigures]) -> None:
        """Set what they say of its tenants."""
        self._shown.setdefault(key, _Shown()).tenants = tenants

    def keep(self, keys: Collection[str]) -> None:
        """Remove the series of all other pools."""
        self._shown = {key: shown for key, shown in self._shown.items() if key in keys}

    def describe(self) -> list[Metric]:
        """Return the families without samples."""
        return [family for family, _ in self._families().values()]

    def labels(self) -> dict[str, tuple[str, ...]]:
        """Return the labels of each family, by its name."""
        return {family.name: labels for family, labels in self._families().values()}

    def collect(self) -> Iterator[Metric]:
        """Yield the families with their samples."""
        families = self._families()
        for key, shown in list(self._shown.items()):
            namespace, _, name = key.partition("/")
            for short, label, value in _samples(shown):
                family, _ = families[short]
                family.add_metric([namespace, name, *([label] if label else [])], value)
        yield from (family for family, _ in families.values())

    @staticmethod
    def _families() -> dict[str, tuple[CounterMetricFamily | GaugeMetricFamily, tuple[str, ...]]]:
        found: dict[str, tuple[CounterMetricFamily | GaugeMetricFamily, tuple[str, ...]]] = {}
        for short, (kind, label, text) in _FAMILIES.items():
            labels = (*_POOL, label) if label else _POOL
            family = kind(f"lorafleet_operator_{short}", text, labels=labels)
            found[short] = (family, labels)
        return found


def _samples(shown: _Shown) -> Iterator[tuple[str, str, float]]:
    """Yield (family, value of its own label, value)."""
    yield from (("pool_engines", state, number) for state, number in shown.traffic.items())
    yield "pool_recycles", "", shown.recycles
    yield "pool_engines_due", "", shown.due
    yield from (("engine_reachable", name, value) for name, value in shown.reachable.items())
    for each in shown.tenants:
        yield "tenant_adapters", each.tenant, each.adapters
        yield "tenant_staged_bytes", each.tenant, each.staged_bytes
        if each.staged_quota is not None:
            yield "tenant_staged_quota_bytes", each.tenant, each.staged_quota
        yield "tenant_pinned_bytes", each.tenant, each.pinned_bytes
        yield "tenant_guaranteed_bytes", each.tenant, each.guaranteed_bytes
        yield "tenant_throttled", each.tenant, each.throttled
