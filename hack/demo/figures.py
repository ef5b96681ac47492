"""The memory figures of one engine, read from its sidecar's Prometheus endpoint."""

from __future__ import annotations

import time
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

SETTLE_SECONDS = 20.0
_LOOK_SECONDS = 1.3
"""A little more than the sidecar's own pause between two looks at the engine."""


@dataclass(frozen=True)
class Figures:
    """One moment; bytes and counts as the metrics tell them."""

    arena_used: int
    arena_limit: int
    on_gpu: int
    on_host: int
    staged: int
    loads: int
    evictions: int
    rebuilds: int

    @property
    def row(self) -> list[str]:
        """The cells of `HEADERS`."""
        return [
            f"{self.arena_used / 2**20:.0f} of {self.arena_limit / 2**20:.0f} MiB",
            str(self.on_gpu),
            str(self.on_host),
            str(self.staged),
            str(self.loads),
            str(self.evictions),
            str(self.rebuilds),
        ]


HEADERS = ("arena used", "in slots", "host", "arena only", "loads", "evictions", "rebuilds")


def read(metrics_url: str) -> Figures:
    """The figures now."""
    answer = httpx.get(metrics_url, timeout=10)
    answer.raise_for_status()
    samples: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            detail = sample.labels.get("tier") or sample.labels.get("state") or ""
            key = (sample.name, detail)
            samples[key] = samples.get(key, 0.0) + sample.value

    def value(name: str, detail: str = "") -> int:
        return int(samples.get((name, detail), 0.0))

    return Figures(
        arena_used=value("lorafleet_sidecar_staging_bytes", "used"),
        arena_limit=value("lorafleet_sidecar_staging_limit_bytes"),
        on_gpu=value("lorafleet_engine_adapters", "gpu"),
        on_host=value("lorafleet_engine_adapters", "host"),
        staged=value("lorafleet_engine_adapters", "staged"),
        loads=value("lorafleet_engine_loads_total"),
        evictions=value("lorafleet_engine_evictions_total", "host"),
        rebuilds=value("lorafleet_engine_rebuilds_total"),
    )


def settled(metrics_url: str) -> Figures:
    """The figures once two looks in a row agree; the last ones after `SETTLE_SECONDS`."""
    deadline = time.monotonic() + SETTLE_SECONDS
    before = read(metrics_url)
    while True:
        time.sleep(_LOOK_SECONDS)
        now = read(metrics_url)
        if now == before or time.monotonic() > deadline:
            return now
        before = now
