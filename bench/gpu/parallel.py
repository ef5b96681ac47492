"""Loads on two ranks, tensor parallel and expert parallel, through the real server.

    PYTHONPATH=engine_sidecar:protos:tests:$PYTHONPATH python bench/gpu/parallel.py [--out FOLDER]

For each engine: slots of every rank compared with stock vLLM's bit by bit, loads beside plain copies of
each rank's bytes, host memory of all ranks together, and a rank that refuses. Writes parallel.json.
LORAFLEET_BENCH_SHAPE=dense tries the same lines on a machine without a GPU.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import accelerator
import gaps
import record
import shapes
from server import Server, write_model
from staging import Staging

RANKS = 2
TIMES = 5


@dataclass
class Bench:
    """One engine of two ranks and what is staged for it."""

    server: Server
    staging: Staging
    runs: bool  # whether this engine can decode with experts at all

    def ask(self, method: str, *arguments: Any) -> list[dict[str, Any]]:
        """Return what each rank answers."""
        answer = self.server.api("/collective_rpc", method=method, args=list(arguments))
        results: list[dict[str, Any]] = answer["results"]
        return results

    def load(self, name: str, loader: str = "direct") -> tuple[int, float]:
        """Load a staged adapter as t/<name>; returns its id and the seconds it took."""
        digest = self.staging.staged[name].digest
        answer = self.server.control("load", served_name=f"t/{name}", digest=digest, loader=loader)
        return answer["lora_int_id"], answer["seconds"]

    def unload(self, lora_int_id: int) -> None:
        self.server.control("unload", lora_int_id=lora_int_id)

    def residency(self) -> list[tuple[list[int], list[int]]]:
        """Return each rank's adapters in slots and in the host tier."""
        return [
            (sorted(each["gpu"]), sorted(each["host"])) for each in self.server.state()["workers"]
        ]

    def tokens(self) -> str:
        """Return what the tenant's adapter answers."""
        return self.server.complete("t/tenant", 8) if self.runs else ""


def host_memory(bench: Bench) -> dict[str, Any]:
    """Compare the host memory of all ranks together before and after a first load."""
    before = bench.ask("bench_memory")
    lora_int_id, _ = bench.load("big")
    after = bench.ask("bench_memory")
    workers = bench.server.state()["workers"]
    bench.unload(lora_int_id)
    staged = bench.staging.staged["big"]
    growth = sum(each["private_rss"] for each in after) - sum(b["private_rss"] for b in before)
    pinned = sum(each["pinned_host_bytes"] for each in workers)
    arena = sum(each["arena_pss"] for each in after)
    total = staged.extent_bytes * arena / bench.staging.size + max(growth, 0) + pinned
    return {
        "adapter_bytes": staged.data_bytes,
        "arena_bytes": bench.staging.size,
        "arena_pss_bytes": arena,
        "private_growth_bytes": growth,
        "pinned_bytes": pinned,
        "host_bytes_ratio": total / staged.data_bytes,
        "registered_bytes": [each["registered_host_bytes"] for each in workers],
        "slot_bytes": [each["slot_bytes"] for each in workers],
        "slot_bytes_of_buffers": [each["slot_bytes"] for each in after],
        "temp_peak_bytes": [each["temporary_peak_bytes"] for each in workers],
        "temp_kept_bytes": [each["temporary_kept_bytes"] for each in workers],
        "ranks": after,
    }


def speed(bench: Bench) -> dict[str, Any]:
    """Time loads by turns with plain copies of what each rank takes."""
    offset = bench.staging.staged["big"].data_offset
    copies, loads, shares = [], [], []
    for _ in range(TIMES):
        answers = bench.ask("bench_copy", offset)
        copies.append(max(each["seconds"] for each in answers))
        shares = [each["bytes"] for each in answers]
        lora_int_id, seconds = bench.load("big")
        loads.append(seconds)
        bench.unload(lora_int_id)
    copy, load = gaps.median(copies), gaps.median(loads)
    return {
        "bytes_by_rank": shares,
        "copy_s": copy,
        "direct_s": load,
        "direct_over_copy": load / copy,
        "copy_all_s": copies,
        "direct_all_s": loads,
    }


def equal_to_stock(bench: Bench, folder: Path) -> dict[str, Any]:
    """Compare every rank's slot of stock vLLM, of `direct` and of `device`, bit by bit."""
    known = {each for row in bench.ask("bench_slots") for each in row["slots"]}
    bench.ask("bench_soil")
    bench.server.api("/v1/load_lora_adapter", lora_name="stock", lora_path=str(folder))
    slots = bench.ask("bench_slots")[0]["slots"]
    stock = next(each for each in slots if each is not None and each not in known)
    found: dict[str, Any] = {}
    for loader in ("direct", "device"):
        bench.ask("bench_soil")
        lora_int_id, found[f"{loader}_after_stock_s"] = bench.load("big", loader)
        answers = bench.ask("bench_compare", stock, lora_int_id)
        found[f"{loader}_differing"] = [each["differing"][:4] for each in answers]
        found["buffers"] = [each["buffers"] for each in answers]
        bench.unload(lora_int_id)
    bench.server.api("/v1/unload_lora_adapter", lora_name="stock")
    found["slots_equal"] = not any(
        names for loader in ("direct", "device") for names in found[f"{loader}_differing"]
    )
    return found


def one_rank_refuses(bench: Bench, rank: int, what: str) -> dict[str, Any]:
    """Let one rank fail: all ranks keep what they had, and the same load succeeds afterwards."""
    tokens, before = bench.tokens(), (bench.residency(), bench.ask("bench_slots"))
    bench.ask("bench_break", rank, what)
    refused = ""
    try:
        bench.load("big")
    except RuntimeError as error:
        refused = str(error)
    bench.ask("bench_break", -1, what)
    after = bench.residency(), bench.ask("bench_slots")
    lora_int_id, _ = bench.load("big")
    loaded = bench.residency()
    bench.unload(lora_int_id)
    return {
        "rank": rank,
        "at": what,
        "refused": refused,
        "ranks_unchanged": before == after,
        "tokens_unchanged": bench.tokens() == tokens,
        "loads_afterwards": all(lora_int_id in gpu for gpu, _ in loaded),
    }


def measure(bench: Bench, files: Path) -> dict[str, Any]:
    """Return all that is measured with one engine."""
    tenant, _ = bench.load("tenant")
    bench.server.control("publish", served_name="t/tenant", lora_int_id=tenant)
    return {
        **host_memory(bench),
        **speed(bench),
        **equal_to_stock(bench, files),
        "refusals": [
            one_rank_refuses(bench, rank, what)
            for rank in range(RANKS)
            for what in ("current", "advance")
        ],
    }


def options(shape: shapes.Shape, *, experts: bool) -> dict[str, Any]:
    """Return the server's flags; CUDA graphs are off, nothing here measures a step."""
    return {
        "load_format": "dummy",
        "tensor_parallel_size": RANKS,
        "enable_expert_parallel": experts,
        "enable_lora": True,
        "max_loras": 3,
        "max_cpu_loras": 3,
        "max_lora_rank": shape.rank,
        "max_model_len": 512,
        "max_num_seqs": 8,
        "dtype": "bfloat16",
        "enforce_eager": True,
        "disable_custom_all_reduce": True,
        "worker_extension_cls": "worker_probe.WorkerProbe",
        **({"kv_cache_memory_bytes": 1 << 30} if accelerator.CUDA else {}),
    }


def run(title: str, shape: shapes.Shape, root: Path, figures: record.Record) -> None:
    """Stage one adapter and measure it in an engine for each way of being parallel."""
    adapters = {"tenant": shape.adapter(8, mlp=False), "big": shape.adapter()}
    staging = Staging(root / title / "volume", adapters)
    model = write_model(shape, root / title / "model")
    files = staging.write_peft("big", root / title / "stock")
    for how in ("ep", "tp") if shape.experts else ("tp",):
        figures.say(f"starting {title} {how}")
        log = figures.path.with_name(f"parallel-{title}-{how}.log")
        flags = options(shape, experts=how == "ep")
        with Server(model, staging.volume, flags, log) as server:
            bench = Bench(server, staging, accelerator.CUDA or not shape.experts)
            figures.put(**{f"{title} {how}": measure(bench, files)})


def main() -> None:
    """Run every engine; each one's figures are on the disk as soon as it is done."""
    name, _shape = shapes.chosen()
    figures = record.opened("parallel", name)
    root = Path(tempfile.mkdtemp(prefix="lorafleet-gpu-", dir="/dev/shm"))
    try:
        for title in ("paper", "moe") if name == "paper" else (name,):
            run(title, shapes.SHAPES[title], root, figures)
            shutil.rmtree(root / title)
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
