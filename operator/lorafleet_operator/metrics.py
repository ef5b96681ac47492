"""Every metric of the operator, in one table. Adapter names are labels here and nowhere else."""

from __future__ import annotations

from collections import Counter as Counted
from dataclasses import dataclass, replace
from functools import lru_cache
from sys import intern
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily

from lorafleet_operator.certificate_series import CertificateSeries
from lorafleet_operator.pool_series import PoolSeries

if TYPE_CHECKING:
    from collections.abc import Iterator

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
PASS_WAIT_SECONDS: Final = Histogram(
    "lorafleet_operator_pass_wait_seconds",
    "How long passes that were due waited for a place.",
    ["kind"],
    registry=REGISTRY,
    buckets=(0.01, 0.1, 0.5, 1, 5, 15, 60, 300),
)
PASSES_RUNNING: Final = Gauge(
    "lorafleet_operator_passes_running",
    "Passes that run now, those that wait for something included.",
    ["kind"],
    registry=REGISTRY,
)
API_REQUESTS: Final = Counter(
    "lorafleet_operator_api_requests_total",
    "Requests to the API server other than lists and watches; code is the answer's, or none.",
    ["verb", "code"],
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
PUSHED_BYTES: Final = Counter(
    "lorafleet_operator_pushed_bytes_total",
    "Bytes of tensors that trainers sent; what the operator had already is not sent.",
    registry=REGISTRY,
)
PUSHES: Final = Counter(
    "lorafleet_operator_pushes_total",
    "Pushes that ended, by result: committed, unchanged, failed.",
    ["result"],
    registry=REGISTRY,
)
PUSHES_REFUSED: Final = Counter(
    "lorafleet_operator_pushes_refused_total",
    "Calls of trainers refused for their token or for want of permission.",
    registry=REGISTRY,
)
SPOOL_BYTES: Final = Gauge(
    "lorafleet_operator_spool_bytes",
    "Bytes that are kept of pushes, with 16 KiB more for each file.",
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
TRANSFER_RESULTS: Final = Counter(
    "lorafleet_operator_transfer_results_total",
    "Revisions that engines were to get, one by one: ok, or the reason why one did not.",
    ["outcome"],
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
for _change in ("taken", "lost"):  # 0 before the first one, so that a rate sees that too
    SHARD_CHANGES.labels(_change)
TRANSFER_RESULTS.labels("ok")

_ADAPTERS_AT_A_TIME: Final = 200
_STATUSES: Final = ("True", "False", "Unknown")


@dataclass(frozen=True, slots=True)
class Shown:
    """What the series of one adapter say."""

    base_model: str
    conditions: tuple[tuple[str, str], ...]
    desired: int
    ready: int
    pool: str = ""
    """Key of its pool, `<namespace>/<name>`."""
    reason: str = ""
    """Why it is not Ready, "" if it is."""
    tiers: tuple[tuple[str, int], ...] = ()
    """Engines that have it, by the best tier there."""
    steps: tuple[tuple[str, int], ...] = ()
    """The trainer's step that each engine serves, by pod."""
    pushed_step: int | None = None
    """The step of the newest push; None for other sources."""

    @property
    def is_ready(self) -> str:
        """The status of its condition Ready."""
        return next((status for type_, status in self.conditions if type_ == "Ready"), "Unknown")


class AdapterSeries:
    """The series of all adapters, written when they are asked for, beside those of REGISTRY.

    Twenty objects of the library for each of ten thousand adapters would be a quarter of the
    operator's memory, and as many for each sample while a text is made several times that.

    At most `limit` adapters have series of their own, those that are not Ready first: each costs
    Prometheus some thirty. The sums over a pool count all.
    """

    def __init__(self, limit: int = 2000) -> None:
        self.limit = limit
        self._shown: dict[tuple[str, str], Shown] = {}
        self._equal = lru_cache(maxsize=1024)(lambda conditions: conditions)

    def show(self, namespace: str, name: str, shown: Shown) -> None:
        """Set what the series of one adapter say. What is equal of many is kept once."""
        self._shown[namespace, name] = replace(
            shown,
            conditions=self._equal(shown.conditions),
            tiers=self._equal(shown.tiers),
            pool=intern(shown.pool),
        )

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
                labels=[*place, "base_model", "pool_namespace", "pool"],
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
            GaugeMetricFamily(
                "lorafleet_operator_adapter_tier_engines",
                "Engines that have an adapter, by the best tier there: gpu, host, staged.",
                labels=[*place, "tier"],
            ),
            GaugeMetricFamily(
                "lorafleet_operator_adapter_failing",
                "1 for each adapter that is not Ready, with the reason in its condition.",
                labels=[*place, "reason"],
            ),
            GaugeMetricFamily(
                "lorafleet_operator_adapter_engine_step",
                "The trainer's step that an engine serves of a pushed adapter, of a hundred engines each.",
                labels=[*place, "pod"],
            ),
            GaugeMetricFamily(
                "lorafleet_operator_adapter_pushed_step",
                "The trainer's step of the newest push of an adapter.",
                labels=place,
            ),
            GaugeMetricFamily(
                "lorafleet_operator_adapters",
                "Adapters of a pool by what their condition Ready is; with series of their own or without.",
                labels=[*place, "ready"],
            ),
        ]

    def text(self) -> Iterator[str]:
        """Yield Prometheus' text of all series, some hundred adapters at a time.

        It is what the library would write: labels in the order of their names.
        """
        everything = list(self._shown.items())
        shown = self._within_limit(everything)
        samples = (_info, _conditions, _engines, _tiers, _failing, _steps, _pushed)
        *families, sums = self.describe()
        for family, lines in zip(families, samples, strict=True):
            yield _head(family)
            for start in range(0, len(shown), _ADAPTERS_AT_A_TIME):
                part = shown[start : start + _ADAPTERS_AT_A_TIME]
                yield "".join(
                    f"{family.name}{{{labels}}} {value:.1f}\n"
                    for (namespace, name), said in part
                    for labels, value in lines(f'name="{name}",namespace="{namespace}"', said)
                )
        counts = Counted((said.pool, said.is_ready) for _, said in everything)
        yield _head(sums) + "".join(
            f'{sums.name}{{{_pool(pool, "name", "namespace")},ready="{ready}"}} {count:.1f}\n'
            for (pool, ready), count in sorted(counts.items())
        )

    def _within_limit(
        self, everything: list[tuple[tuple[str, str], Shown]]
    ) -> list[tuple[tuple[str, str], Shown]]:
        if len(everything) <= self.limit:
            return everything
        failing = [each for each in everything if each[1].is_ready != "True"]
        well = (each for each in everything if each[1].is_ready == "True")
        return [*failing, *well][: self.limit]


def _head(family: GaugeMetricFamily) -> str:
    return f"# HELP {family.name} {family.documentation}\n# TYPE {family.name} gauge\n"


def _pool(key: str, name_label: str, namespace_label: str) -> str:
    namespace, _, name = key.partition("/")
    return f'{name_label}="{name}",{namespace_label}="{namespace}"'


def _info(place: str, said: Shown) -> list[tuple[str, int]]:
    model = said.base_model.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return [(f'base_model="{model}",{place},{_pool(said.pool, "pool", "pool_namespace")}', 1)]


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


def _tiers(place: str, said: Shown) -> list[tuple[str, int]]:
    return [(f'{place},tier="{tier}"', count) for tier, count in said.tiers]


def _failing(place: str, said: Shown) -> list[tuple[str, int]]:
    return [(f'{place},reason="{said.reason}"', 1)] if said.reason else []


def _steps(place: str, said: Shown) -> list[tuple[str, int]]:
    return [(f'{place},pod="{pod}"', step) for pod, step in said.steps]


def _pushed(place: str, said: Shown) -> list[tuple[str, int]]:
    return [] if said.pushed_step is None else [(place, said.pushed_step)]


ADAPTERS: Final = AdapterSeries()


CERTIFICATES: Final = CertificateSeries()
REGISTRY.register(CERTIFICATES)
POOLS: Final = PoolSeries()
REGISTRY.register(POOLS)
