"""An arena on one GPU, and how what happens on it is timed and watched; see copies_check.py."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lorafleet_vllm.arena_map import ArenaMap

if TYPE_CHECKING:
    from collections.abc import Callable


DEVICE = torch.device(os.environ.get("LORAFLEET_CHECK_DEVICE", "cuda"))
CUDA = DEVICE.type == "cuda"


def say(figure: str, **values: Any) -> None:
    print(json.dumps({"figure": figure, **values}), flush=True)


class Memory:
    """An arena of random values, from which views are cut one after the other."""

    def __init__(self, nbytes: int) -> None:
        self._folder = tempfile.TemporaryDirectory(dir="/dev/shm")
        path = Path(self._folder.name) / "arena"
        generator = torch.Generator(DEVICE).manual_seed(1)
        with path.open("wb") as file:
            for start in range(0, nbytes, 256 << 20):
                size = min(256 << 20, nbytes - start)
                part = torch.empty(size // 2, device=DEVICE, dtype=torch.bfloat16)
                part.normal_(generator=generator)
                file.write(part.cpu().view(torch.uint8).numpy().tobytes())
        begin = time.perf_counter()
        self.map = ArenaMap(path, cuda=CUDA)
        say("arena", bytes=nbytes, seconds=time.perf_counter() - begin,
            registered_bytes=self.map.registered_bytes)  # fmt: skip
        self._next = 0

    def take(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        size = torch.Size(shape).numel() * dtype.itemsize
        if self._next + size > self.map.size:
            self._next = 0
        self._next += size
        return self.map.view(self._next - size, shape, dtype)

    def close(self) -> None:
        self._folder.cleanup()


def slots(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.full((2, *shape), 7, dtype=dtype, device=DEVICE)


def seconds(act: Callable[[], object], repeat: int = 7) -> tuple[float, float]:
    """Return the median seconds (until the call returns, until the device is done)."""
    called, done = [], []
    for _ in range(repeat):
        if CUDA:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        act()
        called.append(time.perf_counter() - begin)
        if CUDA:
            torch.cuda.synchronize()
        done.append(time.perf_counter() - begin)
    return statistics.median(called), statistics.median(done)


def launches(act: Callable[[], object]) -> dict[str, int]:
    """Return how often `act` called what of the CUDA runtime, and the kinds of its copies."""
    from torch.profiler import ProfilerActivity, profile, record_function

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        with record_function("the fill"):
            act()
        torch.cuda.synchronize()
    events = profiled.events()
    span = next(e.time_range for e in events if e.name == "the fill")
    found: dict[str, int] = {}
    for event in events:
        inside = span.start <= event.time_range.start <= span.end
        if (event.name.startswith("cuda") and inside) or event.name.startswith("Memcpy"):
            found[event.name] = found.get(event.name, 0) + 1
    return found
