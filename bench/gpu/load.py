"""Loads of the paper's adapter by stock vLLM, `device` and `direct` beside the bus limit, on one GPU.

    PYTHONPATH=engine_sidecar:protos:tests:$PYTHONPATH python bench/gpu/load.py [--out FOLDER]

Prints one table and writes load.json (docs/gpu.md says what each figure is). Needs about 110 GiB of
GPU memory and 60 GiB of host memory, half of it /dev/shm. LORAFLEET_BENCH_SHAPE=dense tries the
same lines on a machine without a GPU.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import accelerator
import device_memory
import gaps
import host_memory
import inprocess
import record
import shapes
from decoding import Decoding
from plugin_requests import stock
from staging import Staging

if TYPE_CHECKING:
    from collections.abc import Callable

TENANT, BIG, OTHER, DEVICE, STOCK = 1, 2, 3, 4, 5  # lora_int_ids; OTHER is BIG's bytes again
TIMES = 5
QUIET_STEPS, EVERY, CYCLES = (800, 80, 10) if accelerator.CUDA else (60, 20, 3)


@dataclass
class Bench:
    """One engine, what is staged for it, and where the figures go."""

    probe: Any
    staging: Staging
    shape: shapes.Shape
    record: record.Record
    folder: Path

    def ours(self, lora_int_id: int, loader: str = "direct") -> Any:
        name = "tenant" if lora_int_id == TENANT else "big"
        return inprocess.revision(self.staging, lora_int_id, name, loader)

    @property
    def engine(self) -> Any:
        return self.probe.llm.llm_engine

    def arena_data(self) -> Any:
        """Return the adapter's bytes where the plugin has them mapped and registered."""
        import torch

        staged = self.staging.staged["big"]
        arena = self.probe.residency.arena.current()
        return arena.view(staged.data_offset, (staged.data_bytes,), torch.uint8)


def host_memory_of_a_load(bench: Bench) -> None:
    """Compare the host memory of pod and process before and after the very first load."""
    staged, volume = bench.staging.staged["big"], bench.staging.volume
    before, free = host_memory.of_process(), host_memory.available()
    inprocess.load_seconds(bench.probe, bench.ours(BIG))
    after = host_memory.of_process()
    arena = sum(each["Rss"] for name, each in after.items() if name.startswith(str(volume)))
    report = bench.probe.residency.report()
    private = host_memory.private(after, but=volume) - host_memory.private(before, but=volume)
    pinned = report["pinned_host_bytes"]
    total = staged.extent_bytes + max(private, 0) + pinned
    bench.record.put(
        adapter_bytes=staged.data_bytes,
        layer_bytes=bench.shape.layer_bytes,
        arena_bytes=bench.staging.size,
        arena_resident_bytes=arena,
        registered_bytes=report["registered_host_bytes"],
        slot_bytes=report["slot_bytes"],
        host_private_growth_bytes=private,
        host_pinned_bytes=pinned,
        host_available_shrank_bytes=free - host_memory.available(),
        host_bytes_ratio=total / staged.data_bytes,
        host_status=host_memory.status(),
    )
    inprocess.clear(bench.probe)


def direct_when_idle(bench: Bench) -> None:
    """Time loads, rebuilds and plain copies of the same bytes by turns."""
    request, probe = bench.ours(BIG), bench.probe
    copies, loads, rebuilds = [], [], []
    for _ in range(TIMES):
        copies.append(accelerator.copy_seconds(bench.arena_data()))
        loads.append(inprocess.load_seconds(probe, request))
        inprocess.evict(probe, BIG)
        rebuilds.append(inprocess.load_seconds(probe, request))
        inprocess.clear(probe)
    with device_memory.peak() as load:
        inprocess.load_seconds(probe, request)
    inprocess.evict(probe, BIG)
    with device_memory.peak() as rebuild:
        inprocess.load_seconds(probe, request)
    phases = dict(probe.residency.stats.seconds)
    inprocess.clear(probe)
    copy = gaps.median(copies)
    bench.record.put(
        copy_s=copy,
        copy_gigabytes_per_second=bench.arena_data().numel() / copy / 1e9,
        direct_s=gaps.median(loads),
        direct_rebuild_s=gaps.median(rebuilds),
        copy_all_s=copies,
        direct_all_s=loads,
        direct_rebuild_all_s=rebuilds,
        temp_peak_bytes=max(load.torch_bytes, rebuild.torch_bytes),
        temp_peak_driver_bytes=max(load.driver_bytes, rebuild.driver_bytes),
        temp_kept_bytes=max(load.kept_bytes, rebuild.kept_bytes),
        direct_phases_s=phases,
    )


def device_when_idle(bench: Bench) -> None:
    """Time `device`: build, activate, offload; and again from its offloaded tensors."""
    request, probe = bench.ours(DEVICE, "device"), bench.probe
    with device_memory.peak() as load:
        first = inprocess.load_seconds(probe, request)
    again = []
    for _ in range(3):
        inprocess.evict(probe, DEVICE)
        again.append(inprocess.load_seconds(probe, request))
    bench.record.put(
        device_s=first,
        device_rebuild_s=gaps.median(again),
        device_temp_peak_bytes=load.torch_bytes,
        device_temp_kept_bytes=load.kept_bytes,
        device_pinned_bytes=probe.residency.report()["pinned_host_bytes"],
    )
    inprocess.clear(probe)


@dataclass
class Churn:
    """Loads and unloads one adapter by turns, between steps; `seconds` are those of each load."""

    bench: Bench
    request: Any
    seconds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._load: inprocess.Load | None = None
        self._begin = 0.0

    def __call__(self, done: int) -> None:
        if self._load is not None:
            if self._load.go_on():
                self._load = None
                self.seconds.append(time.perf_counter() - self._begin)
        elif done % EVERY == EVERY // 4:
            self._begin = time.perf_counter()
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
            longest_step_ms_quiet=max(*quiet, *answered) * 1e3,
            longest_step_ms_direct=max(*rebuilt, *loaded) * 1e3,
            p99_gap_ms_quiet=gaps.summary(quiet + answered)["p99_ms"],
            p99_gap_ms_direct=gaps.summary(rebuilt + loaded)["p99_ms"],
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


def compare_slots(bench: Bench) -> None:
    """Compare the stock adapter's slot with `direct`'s and `device`'s, bit by bit."""
    probe, differing = bench.probe, {}
    for lora_int_id, loader in ((BIG, "direct"), (DEVICE, "device")):
        for other in list(probe.residency.known):
            bench.engine.remove_lora(other)
        inprocess.soil(probe)
        inprocess.load_seconds(probe, bench.ours(lora_int_id, loader))
        differing[loader] = inprocess.differing_slots(probe, STOCK, lora_int_id)
    bench.record.put(
        slots_equal=not any(differing.values()),
        slots_differing={loader: names[:8] for loader, names in differing.items()},
    )


def table(figures: dict[str, Any]) -> str:
    """Return the table of one run, in Markdown."""
    copy = figures["copy_s"]
    rows = [
        ("stock vLLM", figures["stock_s"], None, figures["longest_step_ms_stock"]),
        ("device", figures["device_s"], figures["device_rebuild_s"], figures["longest_step_ms_device"]),
        ("direct", figures["direct_s"], figures["direct_rebuild_s"], figures["longest_step_ms_direct"]),
        ("bus limit", copy, copy, figures["longest_step_ms_quiet"]),
    ]  # fmt: skip
    lines = [
        "| | load, s | / bus | again, s | / bus | longest step of others, ms |",
        "|---" * 6 + "|",
    ]
    for name, load, again, step in rows:
        second = "| | " if again is None else f"| {again:.4f} | {again / copy:.3f} "
        lines.append(f"| {name} | {load:.4f} | {load / copy:.3f} {second}| {step:.1f} |")
    return "\n".join(lines)


def main() -> None:
    """Run everything; each figure is on the disk as soon as it is known."""
    name, shape = shapes.chosen()
    figures = record.opened("load", name)
    folder = Path(tempfile.mkdtemp(prefix="lorafleet-bench-", dir="/dev/shm"))
    try:
        adapters = {"tenant": shape.adapter(8, mlp=False), "big": shape.adapter()}
        staging = Staging(folder / "volume", adapters)
        figures.say(f"staged {staging.size} bytes; starting the engine")
        probe, started = inprocess.start(shape, staging, folder)
        figures.put(start_s=started.seconds, register_s=started.register_seconds)
        bench = Bench(probe, staging, shape, figures, folder)
        host_memory_of_a_load(bench)
        direct_when_idle(bench)
        device_when_idle(bench)
        while_others_decode(bench)
        compare_slots(bench)
        ratios = {
            "direct / copy": figures.figures["direct_s"] / figures.figures["copy_s"],
            "stock / direct": figures.figures["stock_s"] / figures.figures["direct_s"],
        }
        figures.put(ratios=ratios)
        print(table(figures.figures), flush=True)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
