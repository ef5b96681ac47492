"""Loads of the paper's adapter by stock vLLM, `device` and `direct` beside the bus limit, on one GPU.

    PYTHONPATH=engine_sidecar:protos:tests:$PYTHONPATH python bench/gpu/load.py [--out FOLDER]

Prints one table and writes load.json (docs/gpu.md says what each figure is). Needs about 110 GiB of
GPU memory and 60 GiB of host memory, half of it /dev/shm. LORAFLEET_BENCH_SHAPE=dense tries the
same lines on a machine without a GPU.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import inprocess
import record
import shapes
from load_decoding import while_others_decode
from load_idle import (
    compare_slots,
    device_when_idle,
    direct_when_idle,
    host_memory_of_a_load,
    small_when_idle,
)
from one_gpu import Bench
from staging import Staging


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


def bars(found: dict[str, Any]) -> dict[str, float]:
    """Return the figures that have bars, all of this run."""
    return {
        "direct / copy": found["direct_s"] / found["copy_s"],
        "direct rebuild / copy": found["direct_rebuild_s"] / found["copy_s"],
        "small fill / its copies": found["small_fill_s"] / found["small_copies_s"],
        "stock / direct": found["stock_s"] / found["direct_s"],
        "longest step added by loads, ms": found["longest_step_added_ms"],
        "longest step added by rebuilds, ms": found["longest_step_added_ms_with_arrivals"],
        "p99 gap under loads / quiet": _p99(found, ""),
        "p99 gap under rebuilds / quiet with arrivals": _p99(found, "_with_arrivals"),
        "temporary peak / layer": found["temp_peak_bytes"] / found["layer_bytes"],
        "temporary kept": found["temp_kept_bytes"],
        "host memory / adapter": found["host_bytes_ratio"],
    }


def _p99(found: dict[str, Any], suffix: str) -> float:
    return float(found[f"p99_gap_ms_direct{suffix}"] / found[f"p99_gap_ms_quiet{suffix}"])


def main() -> None:
    """Run everything; each figure is on the disk as soon as it is known."""
    name, shape = shapes.chosen()
    figures = record.opened("load", name)
    folder = Path(tempfile.mkdtemp(prefix="lorafleet-gpu-", dir="/dev/shm"))
    try:
        adapters = {"tenant": shape.adapter(8, mlp=False), "big": shape.adapter()}
        staging = Staging(folder / "volume", adapters)
        figures.say(f"staged {staging.size} bytes; starting the engine")
        probe, started = inprocess.start(shape, staging, folder)
        figures.put(start_s=started.seconds, register_s=started.register_seconds)
        bench = Bench(probe, staging, shape, figures, folder)
        host_memory_of_a_load(bench)
        direct_when_idle(bench)
        small_when_idle(bench)
        device_when_idle(bench)
        while_others_decode(bench)
        compare_slots(bench)
        figures.put(bars=bars(figures.figures))
        print(table(figures.figures), flush=True)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
