"""Every metric of the operator, in one table. Adapter names are labels here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

REGISTRY: Final = CollectorRegistry()

RECONCILE_SECONDS: Final = Histogram(
    "lorafleet_operator_reconcile_duration_seconds",
    "Duration of one pass over one object, transfers included.",
    ["kind"],
    registry=REGISTRY,
    buckets=(0.001, 0.01, 0.05, 0.25, 1, 5, 30, 120, 600),
)
RECONCILE_ERRORS: Final = Counter(
    "lorafleet_operator_reconcile_errors_total",
    "Passes that ended in an error, by the reason in the condition.",
    ["reason"],
    registry=REGISTRY,
)
ROLLBACKS: Final = Counter(
    "lorafleet_operator_rollbacks_total",
    "Revisions that were given up, by the reason in status.rolledBack.",
    ["reason"],
    registry=REGISTRY,
)
SOURCE_READ_BYTES: Final = Counter(
    "lorafleet_operator_source_read_bytes_total",
    "Bytes read from sources, by provider.",
    ["source"],
    registry=REGISTRY,
)
TRANSFER_BYTES: Final = Counter(
    "lorafleet_operator_transfer_bytes_total",
    "Bytes of chunks sent to sidecars.",
    registry=REGISTRY,
)
TRANSFER_SECONDS: Final = Histogram(
    "lorafleet_operator_transfer_duration_seconds",
    "Duration of one staging to all its engines.",
    registry=REGISTRY,
    buckets=(0.05, 0.25, 1, 5, 15, 60, 300, 1800),
)
TRANSFERS: Final = Gauge(
    "lorafleet_operator_transfers_in_progress",
    "Stagings that run now.",
    registry=REGISTRY,
)

SHARDS: Final = Gauge(
    "lorafleet_operator_shards",
    "Shards into which this operator divides the pools.",
    registry=REGISTRY,
)
SHARDS_HELD: Final = Gauge(
    "lorafleet_operator_shards_held",
    "Shards whose lease this operator holds: it acts for their pools. 0 on one that stands by.",
    registry=REGISTRY,
)
SHARD_CHANGES: Final = Counter(
    "lorafleet_operator_shard_changes_total",
    "Shards that this operator has taken, and those that it has lost or given up.",
    ["change"],
    registry=REGISTRY,
)

_ADAPTERS_AT_A_TIME: Final = 200
_STATUSES: Final = ("True", "False", "Unknown")


@dataclass(frozen=True, slots=True)
class Shown:
    """What the series of one adapter say."""

    base_model: str
    conditions: tuple[tuple[str, str], ...]
    desired: int
    ready: int


class AdapterSeries:
    """The series of all adapters, written when they are asked for, beside those of REGISTRY.

    Twenty objects of the library for each of ten thousand adapters would be a quarter of the
    operator's memory, and as many for each sample while a text is made several times that.
    """

    def __init__(self) -> None:
        self._shown: dict[tuple[str, str], Shown] = {}
        self._equal = lru_cache(maxsize=1024)(lambda conditions: conditions)

    def show(self, namespace: str, name: str, shown: Shown) -> None:
        """Set what the series of one adapter say. Equal conditions of many are kept once."""
        shown = replace(shown, conditions=self._equal(shown.conditions))
        self._shown[namespace, name] = shown

    def forget(self, namespace: str, name: str) -> None:
        """Remove the series of an adapter that is gone."""
        self._shown.pop((namespace, name), None)

    def describe(self) -> list[GaugeMetricFamily]:
        """Return the families without samples."""
        place = ["namespace", "name"]
        return [
            GaugeMetricFamily(
                "lorafleet_operator_adapter_info",
                "1 for each adapter.",
                labels=[*place, "base_model"],
            ),
            GaugeMetricFamily(
                "lorafleet_operator_adapter_condition",
                "1 for the status that each condition of an adapter has, 0 for the others.",
                labels=[*place, "type", "status"],
            ),
            GaugeMetricFamily(
                "lorafleet_operator_adapter_engines",
                "Engines of an adapter, by state: desired, ready.",
                labels=[*place, "state"],
            ),
        ]

    def text(self) -> Iterator[str]:
        """Yield Prometheus' text of all series, some hundred adapters at a time.

        It is what the library would write: labels in the order of their names.
        """
        shown = list(self._shown.items())
        samples = (_info, _conditions, _engines)
        for family, lines in zip(self.describe(), samples, strict=True):
            yield f"# HELP {family.name} {family.documentation}\n# TYPE {family.name} gauge\n"
            for start in range(0, len(shown), _ADAPTERS_AT_A_TIME):
                part = shown[start : start + _ADAPTERS_AT_A_TIME]
                yield "".join(
                    f"{family.name}{{{labels}}} {value:.1f}\n"
                    for (namespace, name), said in part
                    for labels, value in lines(f'name="{name}",namespace="{namespace}"', said)
                )


def _info(place: str, said: Shown) -> list[tuple[str, int]]:
    model = said.base_model.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return [(f'base_model="{model}",{place}', 1)]


def _conditions(place: str, said: Shown) -> list[tuple[str, int]]:
    return [
        (f'{place},status="{status}",type="{type_}"', int(found == status))
        for type_, found in said.conditions
        for status in _STATUSES
    ]


def _engines(place: str, said: Shown) -> list[tuple[str, int]]:
    return [
        (f'{place},state="desired"', said.desired),
        (f'{place},state="ready"', said.ready),
    ]


ADAPTERS: Final = AdapterSeries()


class PoolSeries(Collector):
    """The series of all pools: how many engines take traffic, and how many were recycled."""

    def __init__(self) -> None:
        self._shown: dict[str, tuple[dict[str, int], int]] = {}

    def show(self, key: str, engines: dict[str, int], recycles: int) -> None:
        """Set what the series of the pool `<namespace>/<name>` say; `engines` by their state."""
        self._shown[key] = engines, recycles

    def keep(self, keys: Collection[str]) -> None:
        """Remove the series of all other pools."""
        self._shown = {key: shown for key, shown in self._shown.items() if key in keys}

    def describe(self) -> list[Metric]:
        """Return the families without samples."""
        place = ["namespace", "name"]
        return [
            GaugeMetricFamily(
                "lorafleet_operator_pool_engines",
                "Engines of a pool by whether they take traffic: the values of engines[].traffic.",
                labels=[*place, "traffic"],
            ),
            CounterMetricFamily(
                "lorafleet_operator_pool_recycles",
                "Engines of a pool that were started again by its rule and came back.",
                labels=place,
            ),
        ]

    def collect(self) -> Iterator[Metric]:
        """Yield the families, from any thread."""
        engines, recycles = self.describe()
        for key, (states, count) in list(self._shown.items()):
            namespace, _, name = key.partition("/")
            place = {"namespace": namespace, "name": name}
            for state, number in states.items():
                engines.add_sample(engines.name, {**place, "traffic": state}, number)
            recycles.add_sample(f"{recycles.name}_total", place, count)
        yield from (engines, recycles)


POOLS: Final = PoolSeries()
REGISTRY.register(POOLS)
