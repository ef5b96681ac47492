"""Every `lorafleet_sidecar_*` and `lorafleet_engine_*` metric, in one table.

Values are read when Prometheus asks, from the arena, the agent and the last look at the engine.
Adapter names are never labels here: thousands of adapters times engines would be too many
series (who is where is in the resource's status). `rank` is vLLM's worker rank.

`python -m lorafleet_sidecar.metrics` prints the table as markdown.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

from lorafleet.v1alpha1 import sidecar_pb2 as pb
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from lorafleet_sidecar.observed import FirstRequestFigures
from lorafleet_sidecar.residents import NAMESPACES_SHOWN, displaced, revision_bytes, tiers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lorafleet.certificates import CertificateFiles
    from prometheus_client.core import Metric

    from lorafleet_sidecar.agent import Agent
    from lorafleet_sidecar.transfer_service import TransferService

_KINDS: dict[str, type[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}
Sample = tuple[tuple[str, ...], float]
_READ_SECONDS = 5.0


@dataclass(frozen=True)
class Reading:
    """One moment of the sidecar, copied on the event loop, rendered in the scrape's thread."""

    inventory: pb.Inventory
    operations: dict[tuple[str, str], int]
    operation_seconds: dict[str, float]
    engine_starts: int
    engine_deaths: int
    quarantined: int
    received_bytes: int
    reused_bytes: int
    forwarded_bytes: int
    first_requests: FirstRequestFigures
    certificates: CertificateFiles | None = None


@dataclass(frozen=True)
class Series:
    """One metric: its name without `_total`, kind, labels, help, and how to read it."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str
    read: Callable[[Reading], Iterable[Sample]]

    @property
    def exposed_name(self) -> str:
        """The name as Prometheus shows it."""
        return self.name + "_total" if self.kind == "counter" else self.name


def _per_rank(field: str) -> Callable[[Reading], Iterable[Sample]]:
    def read(reading: Reading) -> Iterable[Sample]:
        return [((str(w.rank),), getattr(w, field)) for w in reading.inventory.workers]

    return read


def _per_rank_and(field: str, label: str) -> Callable[[Reading], Iterable[Sample]]:
    def read(reading: Reading) -> Iterable[Sample]:
        return [((str(w.rank), label), getattr(w, field)) for w in reading.inventory.workers]

    return read


def _one(value: Callable[[Reading], float]) -> Callable[[Reading], Iterable[Sample]]:
    return lambda reading: [((), value(reading))]


def _health(reading: Reading) -> Iterable[Sample]:
    for name, value in pb.EngineHealth.items():
        if value != pb.ENGINE_HEALTH_UNSPECIFIED:
            label = name.removeprefix("ENGINE_HEALTH_").lower()
            yield (label,), float(reading.inventory.health == value)


def _phases(reading: Reading) -> Iterable[Sample]:
    for worker in reading.inventory.workers:
        for phase, seconds in sorted(worker.seconds.items()):
            yield (str(worker.rank), phase), seconds


def _outcomes(reading: Reading) -> Iterable[Sample]:
    return [((key,), n) for key, n in sorted(reading.first_requests.outcomes.items())]


def _expiries(reading: Reading) -> Iterable[Sample]:
    if reading.certificates is not None:
        found = reading.certificates.current()
        yield ("own",), found.expires_at
        yield ("authority",), found.authority_expires_at


def _refused(reading: Reading) -> Iterable[Sample]:
    if reading.certificates is not None:
        yield (), float(bool(reading.certificates.problem))


TABLE: tuple[Series, ...] = (
    Series("lorafleet_sidecar_staging_bytes", "gauge", ("state",),
           "Arena bytes: used by committed revisions, reserved by transfers in progress.",
           lambda r: [(("used",), r.inventory.arena.used_bytes), (("reserved",), r.inventory.arena.reserved_bytes)]),
    Series("lorafleet_sidecar_staging_in_use_bytes", "gauge", (),
           "Arena bytes that the engine may read now; never evicted.",
           _one(lambda r: r.inventory.arena.in_use_bytes)),
    Series("lorafleet_sidecar_staging_limit_bytes", "gauge", (),
           "Size of the arena: the host budget.",
           _one(lambda r: r.inventory.arena.limit_bytes)),
    Series("lorafleet_sidecar_staging_largest_free_bytes", "gauge", (),
           "Largest extent that fits without evicting anything.",
           _one(lambda r: r.inventory.arena.largest_free_bytes)),
    Series("lorafleet_sidecar_staged_revisions", "gauge", (),
           "Committed revisions in the arena.",
           _one(lambda r: len(r.inventory.staged))),
    Series("lorafleet_sidecar_revision_bytes", "gauge", ("tier", "adapter_namespace"),
           "Arena bytes of committed revisions by the best tier in which the engine has them, and by the namespace "
           "of the adapter that brought them. Namespaces with fewer bytes than the first "
           f"{NAMESPACES_SHOWN} are _others.",
           lambda r: revision_bytes(r.inventory)),
    Series("lorafleet_sidecar_received_bytes", "counter", (),
           "Tensor bytes received by this process and its receivers.",
           _one(lambda r: r.received_bytes)),
    Series("lorafleet_sidecar_reused_bytes", "counter", (),
           "Tensor bytes of transfers that were copied from an earlier revision in the arena instead of received.",
           _one(lambda r: r.reused_bytes)),
    Series("lorafleet_sidecar_forwarded_bytes", "counter", (),
           "Bytes that other sidecars of the pool took from this one: passed on in chains, or filled from its arena.",
           _one(lambda r: r.forwarded_bytes)),
    Series("lorafleet_sidecar_engine_requests", "counter", ("operation", "outcome"),
           "Finished operations on the engine: load, unload, restore, awaken (a load that a request waited for); "
           "outcome is ok or the reason.",
           lambda r: [(key, n) for key, n in sorted(r.operations.items())]),
    Series("lorafleet_sidecar_engine_request_seconds", "counter", ("operation",),
           "Seconds spent in these operations, waiting and drains included.",
           lambda r: [((key,), s) for key, s in sorted(r.operation_seconds.items())]),
    Series("lorafleet_sidecar_engine_recycles", "counter", ("reason",),
           "Engine processes seen to follow another: died_loading, or restarted for another cause.",
           lambda r: [(("died_loading",), r.engine_deaths),
                      (("restarted",), max(0, r.engine_starts - 1 - r.engine_deaths))]),
    Series("lorafleet_sidecar_quarantined_revisions", "gauge", (),
           "Revisions that are not loaded any more because the engine died of them.",
           _one(lambda r: r.quarantined)),
    Series("lorafleet_sidecar_certificate_expiry_timestamp_seconds", "gauge", ("certificate",),
           "When the certificates in use expire, in seconds since 1970: own, and the last authority.",
           _expiries),
    Series("lorafleet_sidecar_certificate_files_refused", "gauge", (),
           "1 while the certificate files that are there cannot be used and earlier ones are.", _refused),
    Series("lorafleet_engine_health", "gauge", ("state",),
           "1 for the state that the engine is in: starting, ready, stock, refused.", _health),
    Series("lorafleet_engine_adapters", "gauge", ("tier",),
           "Revisions by their best tier: in a GPU slot, registered with the engine, in the arena only.",
           lambda r: tiers(r.inventory)),
    Series("lorafleet_engine_displaced_adapters", "gauge", (),
           "Served revisions that keep a slot, by their residency or their tenant's guarantee, and are in none.",
           _one(lambda r: displaced(r.inventory))),
    Series("lorafleet_engine_requests_in_flight", "gauge", (),
           "Requests running on adapters of this fleet.",
           _one(lambda r: sum(each.in_flight for each in r.inventory.loaded))),
    Series("lorafleet_engine_first_requests", "counter", ("outcome",),
           "Requests that waited for an adapter that the engine lacked: served, refused, expired (deadline), "
           "gone (the client left).", _outcomes),
    Series("lorafleet_engine_first_request_seconds", "histogram", (),
           "How long those that were served waited for their adapter.", lambda _: ()),
    Series("lorafleet_engine_slots", "gauge", (),
           "GPU slots for adapters (max_loras).", _one(lambda r: r.inventory.max_loras)),
    Series("lorafleet_engine_weights_bytes", "gauge", ("rank",),
           "Device bytes of the base model: its weights and buffers. Of a CPU without what its kernels have packed.", _per_rank("weights_bytes")),
    Series("lorafleet_engine_kv_cache_bytes", "gauge", ("rank",),
           "Device bytes of the KV cache.", _per_rank("kv_cache_bytes")),
    Series("lorafleet_engine_slot_bytes", "gauge", ("rank",),
           "Device bytes of all LoRA slots.", _per_rank("slot_bytes")),
    Series("lorafleet_engine_gpu_memory_peak_bytes", "gauge", ("rank",),
           "Device bytes above the slots at the worst moment of the last load.",
           _per_rank("temporary_peak_bytes")),
    Series("lorafleet_engine_gpu_memory_kept_bytes", "gauge", ("rank",),
           "Of these, what stayed taken after the load.", _per_rank("temporary_kept_bytes")),
    Series("lorafleet_engine_gpu_memory_allocated_bytes", "gauge", ("rank",),
           "Device bytes allocated by torch in the worker.", _per_rank("torch_allocated_bytes")),
    Series("lorafleet_engine_gpu_memory_reserved_bytes", "gauge", ("rank",),
           "Device bytes reserved by torch in the worker.", _per_rank("torch_reserved_bytes")),
    Series("lorafleet_engine_pinned_bytes", "gauge", ("rank", "kind"),
           "Page-locked host bytes: arena (one copy, registered by each rank) and copies of the device loader.",
           lambda r: [*_per_rank_and("registered_host_bytes", "arena")(r),
                      *_per_rank_and("pinned_host_bytes", "copy")(r)]),
    Series("lorafleet_engine_pinned_limit_bytes", "gauge", (),
           "Host budget that the registered arena stands for; shared by all ranks.",
           _one(lambda r: r.inventory.arena.limit_bytes)),
    Series("lorafleet_engine_host_memory_resident_bytes", "gauge", ("rank",),
           "Resident memory of the worker process, shared pages included.",
           _per_rank("resident_host_bytes")),
    Series("lorafleet_engine_host_memory_private_bytes", "gauge", ("rank",),
           "Of these, what the worker shares with no file: not the arena.",
           _per_rank("private_host_bytes")),
    Series("lorafleet_engine_host_memory_baseline_bytes", "gauge", ("rank",),
           "Private bytes when the worker's first loads were done; 0 before.",
           _per_rank("baseline_host_bytes")),
    Series("lorafleet_engine_baseline_loads", "gauge", ("rank",),
           "Loads by then.", _per_rank("baseline_loads")),
    Series("lorafleet_engine_loads", "counter", ("rank",),
           "Revisions registered with the worker.", _per_rank("loads")),
    Series("lorafleet_engine_offloads", "counter", ("rank",),
           "Revisions whose tensors the device loader moved to pinned host memory.",
           _per_rank("offloads")),
    Series("lorafleet_engine_rebuilds", "counter", ("rank", "outcome"),
           "Evicted revisions brought back for a request, without the source.",
           _per_rank_and("rebuilds", "ok")),
    Series("lorafleet_engine_evictions", "counter", ("rank", "tier"),
           "Revisions that the worker's LRU dropped from its registry.",
           _per_rank_and("evictions", "host")),
    Series("lorafleet_engine_slot_evictions", "counter", ("rank",),
           "Revisions that gave up their GPU slot for another.", _per_rank("slot_evictions")),
    Series("lorafleet_engine_phase_seconds", "counter", ("rank", "phase"),
           "Seconds that the worker spent by phase: build, fill, activate, offload, rebuild.", _phases),
)  # fmt: skip


class SidecarCollector(Collector):
    """Feeds the table to a Prometheus registry; `collect` may run in any thread."""

    def __init__(
        self,
        agent: Agent,
        transfer: TransferService,
        certificates: CertificateFiles | None = None,
    ) -> None:
        self._certificates = certificates
        self._agent = agent
        self._transfer = transfer
        self._loop = asyncio.get_running_loop()

    def collect(self) -> Iterable[Metric]:
        """Yield every metric of the table, read now."""
        reading = asyncio.run_coroutine_threadsafe(self._read(), self._loop).result(_READ_SECONDS)
        yield from families(reading)

    def describe(self) -> Iterable[Metric]:
        """Yield the names alone, so that registering reads nothing."""
        return [_family(series) for series in TABLE]

    async def _read(self) -> Reading:
        agent = self._agent
        agent.post()
        state = agent.observed.state
        return Reading(
            inventory=agent.board.current,
            operations=dict(agent.counters.operations),
            operation_seconds=dict(agent.counters.operation_seconds),
            engine_starts=agent.counters.engine_starts,
            engine_deaths=agent.counters.engine_deaths,
            quarantined=sum(map(agent.desired.quarantined, agent.desired.deaths)),
            received_bytes=self._transfer.received_bytes,
            reused_bytes=self._transfer.reused_bytes,
            forwarded_bytes=self._transfer.forwarded_bytes,
            first_requests=state.first_requests if state else FirstRequestFigures(),
            certificates=self._certificates,
        )


def families(reading: Reading) -> Iterable[Metric]:
    """Yield every metric of the table with the values of `reading`."""
    for series in TABLE:
        family = _family(series)
        if isinstance(family, HistogramMetricFamily):
            _add_waits(family, reading.first_requests)
            yield family
            continue
        for labels, value in series.read(reading):
            family.add_metric(labels, value)
        yield family


def _family(series: Series) -> CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily:
    cls = _KINDS[series.kind]
    return cls(series.name, series.help, labels=series.labels)


def _add_waits(family: HistogramMetricFamily, figures: FirstRequestFigures) -> None:
    bounds = [*map(str, figures.buckets), "+Inf"]
    counts = accumulate(figures.waits or (0,))
    family.add_metric((), list(zip(bounds, counts, strict=True)), figures.seconds)


def as_markdown() -> str:
    """Return the table as the documentation shows it."""
    lines = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for series in TABLE:
        labels = ", ".join(f"`{label}`" for label in series.labels)
        lines.append(f"| `{series.exposed_name}` | {series.kind} | {labels} | {series.help} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(as_markdown())
