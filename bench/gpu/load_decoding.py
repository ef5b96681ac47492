"""load.py while 8 requests of another adapter decode: their steps, and loads among them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import accelerator
import gaps
import inprocess
from decoding import Decoding
from one_gpu import BIG, DEVICE, OTHER, STOCK, TENANT
from plugin_requests import stock

if TYPE_CHECKING:
    from collections.abc import Callable

    from one_gpu import Bench

# A window is some rounds of so many steps; one thing happens in each round.
WINDOWS, ROUNDS, EVERY = (6, 2, 80) if accelerator.CUDA else (3, 2, 20)


@dataclass
class Churn:
    """Loads and unloads one adapter by turns, between steps.

    `seconds` are those of each load, `calls` those of each call that carried one on.
    """

    bench: Bench
    request: Any
    seconds: list[float] = field(default_factory=list)
    calls: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._load: inprocess.Load | None = None
        self._begin = 0.0

    def __call__(self, done: int) -> None:
        start = time.perf_counter()
        if self._load is not None:
            if self._load.go_on():
                self._load = None
                self.seconds.append(time.perf_counter() - self._begin)
            self.calls.append(time.perf_counter() - start)
        elif done % EVERY == EVERY // 4:
            self._begin = start
            self._load = inprocess.Load(self.bench.probe, self.request)
        elif done % EVERY == 0:
            self.bench.engine.remove_lora(self.request.lora_int_id)


@dataclass
class Asking:
    """Lets a short request arrive in each round of steps, of each adapter in turn."""

    decoding: Decoding
    requests: list[Any]
    names: list[str] = field(default_factory=list)

    def __call__(self, done: int) -> None:
        if done % EVERY == EVERY // 4:
            self.names.append(self.decoding.ask(self.requests[done // EVERY % len(self.requests)]))

    def first_token_seconds(self) -> float:
        """Return the median time from arrival to first token."""
        return gaps.median([self.decoding.first_tokens[name] for name in self.names])


def while_others_decode(bench: Bench) -> None:
    """Measure the steps of 8 requests: quiet, under loads, under evictions and rebuilds."""
    inprocess.load_seconds(bench.probe, bench.ours(TENANT))
    with Decoding(bench.probe, bench.ours(TENANT)) as decoding:
        first, second = bench.ours(BIG), bench.ours(OTHER)
        decoding.run(4 * EVERY, Asking(decoding, [None, first, second, first]))  # compiles
        resident = Asking(decoding, [first])
        pushing = Asking(decoding, [second, first])
        rebuilds = bench.probe.residency.stats.rebuilds
        answered, rebuilt = alternate(decoding, resident, pushing)
        decoding.settle()
        bench.record.put(
            rebuilds_while_others_decode=bench.probe.residency.stats.rebuilds - rebuilds,
            first_token_from_slot_s=resident.first_token_seconds(),
            first_token_after_eviction_s=pushing.first_token_seconds(),
            **compared("_with_arrivals", answered, rebuilt),
        )
        for request in (first, second):
            bench.engine.remove_lora(request.lora_int_id)
        churn = Churn(bench, first)
        quiet, loaded = alternate(decoding, None, churn)
        bench.record.put(
            direct_s_while_others_decode=gaps.median(churn.seconds),
            loads_while_others_decode=len(churn.seconds),
            calls_of_loads=gaps.summary(churn.calls),
            **compared("", quiet, loaded),
        )
        device = bench.ours(DEVICE, "device")
        loads = decoding.run(EVERY - 1, Churn(bench, device))  # and it stays
        again = decoding.run(4 * EVERY, Asking(decoding, [device, second]))
        decoding.settle()
        for request in (device, second):
            bench.engine.remove_lora(request.lora_int_id)
        bench.record.put(
            steps_device_rebuilds=gaps.summary(again),
            steps_device_loads=gaps.summary(loads),
            longest_step_ms_device=max(*again, *loads) * 1e3,
        )
        stock_while_others_decode(bench, decoding)


def alternate(
    decoding: Decoding,
    calm: Callable[[int], None] | None,
    busy: Callable[[int], None],
) -> tuple[list[list[float]], list[list[float]]]:
    """Return the gaps of short windows of both kinds, by turns: a machine has moods of its own."""
    calm_windows, busy_windows = [], []
    for _ in range(WINDOWS):
        calm_windows.append(decoding.run(ROUNDS * EVERY, calm))
        busy_windows.append(decoding.run(ROUNDS * EVERY, busy))
    return calm_windows, busy_windows


def compared(suffix: str, quiet: list[list[float]], direct: list[list[float]]) -> dict[str, Any]:
    """Return the figures of windows that differ in nothing but the loads of the second kind."""
    found: dict[str, Any] = {}
    for kind, windows in (("quiet", quiet), ("direct", direct)):
        summary = gaps.summary([gap for window in windows for gap in window])
        found[f"steps_{kind}{suffix}"] = summary
        found[f"longest_step_ms_{kind}{suffix}"] = summary["max_ms"]
        found[f"p99_gap_ms_{kind}{suffix}"] = summary["p99_ms"]
        found[f"longest_steps_ms_{kind}{suffix}"] = [max(window) * 1e3 for window in windows]
    added = [max(busy) - max(calm) for calm, busy in zip(quiet, direct, strict=True)]
    found[f"longest_step_added_ms{suffix}"] = gaps.median(added) * 1e3
    return found


def stock_while_others_decode(bench: Bench, decoding: Decoding) -> None:
    """Load once from tmpfs with vLLM's own code; the load's time and the standstill are one."""
    bench.record.say("writing the same adapter as files for stock vLLM")
    folder = bench.staging.write_peft("big", bench.folder / "stock")
    inprocess.soil(bench.probe)  # what `direct` left there is what is expected
    seconds: list[float] = []

    def act(done: int) -> None:
        if done == EVERY // 2:
            seconds.append(inprocess.load_seconds(bench.probe, stock(STOCK, folder)))

    steps = decoding.run(EVERY, act)
    bench.record.put(
        stock_s=seconds[0], longest_step_ms_stock=max(steps) * 1e3, steps_stock=gaps.summary(steps)
    )
