"""Every metric of the operator, in one table. Adapter names are labels here and nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

if TYPE_CHECKING:
    from collections.abc import Mapping

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
ADAPTER_INFO: Final = Gauge(
    "lorafleet_operator_adapter_info",
    "1 for each adapter.",
    ["namespace", "name", "base_model"],
    registry=REGISTRY,
)
ADAPTER_CONDITION: Final = Gauge(
    "lorafleet_operator_adapter_condition",
    "1 for the status that each condition of an adapter has, 0 for the others.",
    ["namespace", "name", "type", "status"],
    registry=REGISTRY,
)
ADAPTER_ENGINES: Final = Gauge(
    "lorafleet_operator_adapter_engines",
    "Engines of an adapter, by state: desired, ready.",
    ["namespace", "name", "state"],
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

_STATUSES: Final = ("True", "False", "Unknown")


def show_adapter(
    namespace: str,
    name: str,
    base_model: str,
    *,
    conditions: Mapping[str, str],
    desired: int,
    ready: int,
) -> None:
    """Set the series of one adapter; `conditions` maps type to status."""
    ADAPTER_INFO.labels(namespace, name, base_model).set(1)
    for type_, found in conditions.items():
        for status in _STATUSES:
            ADAPTER_CONDITION.labels(namespace, name, type_, status).set(found == status)
    ADAPTER_ENGINES.labels(namespace, name, "desired").set(desired)
    ADAPTER_ENGINES.labels(namespace, name, "ready").set(ready)


def forget_adapter(namespace: str, name: str) -> None:
    """Remove the series of an adapter that is gone."""
    for gauge in (ADAPTER_INFO, ADAPTER_CONDITION, ADAPTER_ENGINES):
        gauge.remove_by_labels({"namespace": namespace, "name": name})
