"""What the proof of a slot costs on a GPU, without vLLM: one JSON line each.

    PYTHONPATH=engine_sidecar:protos python bench/gpu/fingerprint.py

The shapes are those of one layer of Qwen3-30B-A3B with rank 64 in slots of rank 64; 48 such layers are
6.29 GiB. The fingerprints are compared with the sidecar's.
"""

from __future__ import annotations

import json
import time

import torch
from lorafleet_sidecar.fingerprints import tensor_fingerprint
from lorafleet_vllm.fingerprints import part_fingerprint

LAYERS, EXPERTS, HIDDEN, MIDDLE, RANK = 48, 128, 2048, 768, 64
SCALE = 0.3
SHAPES = [
    *((1, RANK, wide) for wide in (HIDDEN, HIDDEN, HIDDEN, 4096)),
    *((1, out, RANK) for out in (4096, 512, 512, HIDDEN)),
    *((EXPERTS, RANK, wide) for wide in (HIDDEN, HIDDEN, MIDDLE)),
    *((EXPERTS, out, RANK) for out in (MIDDLE, MIDDLE, HIDDEN)),
]


def main() -> None:
    """Measure and print."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    slots = [torch.randn(shape, device=device).bfloat16() for shape in SHAPES]
    nbytes = sum(slot.nbytes for slot in slots)
    start = time.perf_counter()
    expected = [
        tensor_fingerprint(
            slot.cpu().view(torch.uint8).numpy().tobytes(), tuple(slot.shape), "bfloat16", SCALE
        )
        for slot in slots
    ]
    print(
        json.dumps({"sidecar_gigabytes_per_second": nbytes / (time.perf_counter() - start) / 1e9})
    )
    scaled = [slot.clone().mul_(SCALE) for slot in slots]
    for attempt in range(3):
        if device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        start = time.perf_counter()
        for _ in range(LAYERS if device.type == "cuda" else 1):
            numbers = [part_fingerprint(slot, (0, 0, 0), slot.shape[1]) for slot in scaled]
            found = torch.stack(numbers).tolist()
        seconds = time.perf_counter() - start
        layers = LAYERS if device.type == "cuda" else 1
        figures = {"attempt": attempt, "layers": layers, "seconds": seconds}
        figures["gigabytes_per_second"] = layers * nbytes / seconds / 1e9
        figures["milliseconds_per_layer"] = seconds / layers * 1e3
        if device.type == "cuda":
            figures["temporary_bytes"] = torch.cuda.max_memory_allocated() - before
        print(json.dumps(figures))
    assert [number % 2**64 for number in found] == expected


if __name__ == "__main__":
    main()
