"""Loads of a 6.29 GiB adapter (Qwen3-30B-A3B's shape, rank 64) on one GPU: one JSON line a figure.

    PYTHONPATH=engine_sidecar:protos:tests:$PYTHONPATH python bench/gpu/plugin.py

Needs about 70 GiB of GPU memory and 20 GiB of /dev/shm. `LORAFLEET_BENCH_LAYERS=4` makes a smaller
one. The base model has random weights; the adapter is random too.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import paper_probe
import torch
from plugin_requests import load_for_step, ours
from slot_probe import differing

LAYERS = int(os.environ.get("LORAFLEET_BENCH_LAYERS", "48"))
EXPERTS, HIDDEN, MIDDLE, RANK = 128, 2048, 768, 64
CONFIG = {
    **paper_probe.SMALL,
    "hidden_size": HIDDEN,
    "intermediate_size": 6144,
    "moe_intermediate_size": MIDDLE,
    "num_experts": EXPERTS,
    "num_experts_per_tok": 8,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 151936,
}


def say(figure: str, **values: Any) -> None:
    print(json.dumps({"figure": figure, **values}), flush=True)


def adapter() -> dict[str, tuple[str, torch.Tensor, torch.Tensor, list[float]]]:
    """Return random packed pairs for attention and every expert of every layer."""
    found: dict[str, tuple[str, torch.Tensor, torch.Tensor, list[float]]] = {}
    attention = {"q_proj": (HIDDEN, 4096), "k_proj": (HIDDEN, 512), "v_proj": (HIDDEN, 512)}
    attention["o_proj"] = (4096, HIDDEN)
    experts = {"gate_proj": (HIDDEN, MIDDLE), "up_proj": (HIDDEN, MIDDLE)}
    experts["down_proj"] = (MIDDLE, HIDDEN)
    for layer in range(LAYERS):
        for name, (wide, out) in attention.items():
            pair = _random(RANK, wide), _random(out, RANK)
            found[f"model.layers.{layer}.self_attn.{name}"] = ("linear", *pair, [0.5])
        for name, (wide, out) in experts.items():
            pair = _random(EXPERTS, RANK, wide), _random(EXPERTS, out, RANK)
            found[f"model.layers.{layer}.mlp.experts.{name}"] = ("experts", *pair, [0.5])
    return found


def _random(*shape: int) -> torch.Tensor:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.randn(shape, device=device, dtype=torch.bfloat16).cpu()


def timed(lora: Any, request: Any) -> tuple[float, float]:
    """Return (seconds until the call returns, seconds until the GPU is done)."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    lora.set_active_adapters({request}, None)
    called = time.perf_counter() - start
    torch.cuda.synchronize()
    return called, time.perf_counter() - start


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="lorafleet-bench-", dir="/dev/shm"))
    content = adapter()
    nbytes = sum(t.nbytes for _, a, b, _ in content.values() for t in (a, b))
    say("adapter", bytes=nbytes, tensors=2 * LAYERS * (4 + 3 * EXPERTS))
    paper_probe.SMALL.clear()
    paper_probe.SMALL.update(CONFIG)
    probe = paper_probe.start(
        folder,
        arena_bytes=nbytes + (64 << 20),
        max_lora_rank=RANK,
        gpu_memory_utilization=0.75,
        enforce_eager=False,
    )
    digest = probe.arena.add_modules(content)
    content.clear()
    residency, lora = probe.residency, probe.lora
    say("arena", registered_bytes=residency.arena.registered_bytes, **dict(residency.stats.seconds))
    before = probe.allocated()
    request = ours(probe.arena.volume, 1, digest)
    for attempt in ("first load", "after eviction", "again"):
        called, done = timed(lora, request)
        say(
            f"direct, {attempt}",
            seconds_call=called,
            seconds_done=done,
            gigabytes_per_second=nbytes / done / 1e9,
            temporary_peak_bytes=residency.stats.temporary_peak_bytes,
            kept_bytes=probe.allocated() - before,
        )
        probe.manager.remove_adapter(1)
    direct = load_for_step(lora, request)
    probe.manager.remove_adapter(1)
    request = ours(probe.arena.volume, 2, digest, "device")
    for attempt in ("first load", "after eviction"):
        called, done = timed(lora, request)
        say(
            f"device, {attempt}",
            seconds_call=called,
            seconds_done=done,
            temporary_peak_bytes=residency.stats.temporary_peak_bytes,
            kept_bytes=probe.allocated() - before,
            pinned_host_bytes=residency.report()["pinned_host_bytes"],
        )
        probe.manager.remove_adapter(2)
    say("equal slots", differing=differing(direct, load_for_step(lora, request)))
    say("seconds by phase", **dict(residency.stats.seconds))


if __name__ == "__main__":
    main()
