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

QUIET_STEPS, EVERY, CYCLES = (800, 80, 10) if accelerator.CUDA else (60, 20, 3)


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


def asking(decoding: Decoding, requests: list[Any]) -> Callable[[int], None]:
    """Return what lets a short request arrive every so often, of each adapter in turn."""

    def act(done: int) -> None:
        if done % EVERY == 0:
            decoding.ask(requests[done // EVERY % len(requests)])

    return act


def while_others_decode(bench: Bench) -> None:
    """Measure the steps of 8 requests: quiet, under loads, under evictions and rebuilds."""
    inprocess.load_seconds(bench.probe, bench.ours(TENANT))
    with Decoding(bench.probe, bench.ours(TENANT)) as decoding:
        direct = [bench.ours(BIG), bench.ours(OTHER)]
        steps = CYCLES * EVERY
        decoding.run(4 * EVERY, asking(decoding, [None, *direct]))  # compiles what it meets
        quiet = decoding.run(QUIET_STEPS)
        answered = decoding.run(steps, asking(decoding, direct[1:]))  # its slot is filled by now
        first, rebuilds = len(decoding.first_tokens), bench.probe.residency.stats.rebuilds
        rebuilt = decoding.run(steps, asking(decoding, direct))
        waits = list(decoding.first_tokens.values())[first:]
        for request in direct:
            bench.engine.remove_lora(request.lora_int_id)
        churn = Churn(bench, direct[0])
        loaded = decoding.run(steps, churn)
        bench.engine.remove_lora(BIG)
        bench.record.put(
            steps_quiet=gaps.summary(quiet),
            steps_quiet_with_arrivals=gaps.summary(answered),
            steps_direct_rebuilds=gaps.summary(rebuilt),
            steps_direct_loads=gaps.summary(loaded),
            rebuilds_while_others_decode=bench.probe.residency.stats.rebuilds - rebuilds,
            first_token_from_slot_s=gaps.median(list(decoding.first_tokens.values())[4:first]),
            first_token_after_eviction_s=gaps.median(waits),
            direct_s_while_others_decode=gaps.median(churn.seconds),
            loads_while_others_decode=len(churn.seconds),
            calls_of_loads=gaps.summary(churn.calls),
            **pair("", quiet, loaded),
            **pair("_with_arrivals", answered, rebuilt),
        )
        device = [bench.ours(DEVICE, "device"), direct[1]]
        loaded = decoding.run(EVERY, Churn(bench, device[0]))
        rebuilt = decoding.run(4 * EVERY, asking(decoding, device))
        for request in device:
            bench.engine.remove_lora(request.lora_int_id)
        bench.record.put(
            steps_device_rebuilds=gaps.summary(rebuilt),
            steps_device_loads=gaps.summary(loaded),
            longest_step_ms_device=max(*rebuilt, *loaded) * 1e3,
        )
        stock_while_others_decode(bench, decoding)


def pair(suffix: str, quiet: list[float], direct: list[float]) -> dict[str, float]:
    """Return what differs between two windows in nothing but the loads of the second."""
    return {
        f"longest_step_ms_quiet{suffix}": max(quiet) * 1e3,
        f"longest_step_ms_direct{suffix}": max(direct) * 1e3,
        f"p99_gap_ms_quiet{suffix}": gaps.summary(quiet)["p99_ms"],
        f"p99_gap_ms_direct{suffix}": gaps.summary(direct)["p99_ms"],
    }


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
