"""GPU memory over a block of code, as torch and the driver tell it; nothing where there is no GPU."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Peak:
    """`torch_bytes`: above what tensors held at the start; `driver_bytes`: above what was used.

    The driver's figure also sees what torch does not count, and hides what its cache already had.
    """

    torch_bytes: int = 0
    driver_bytes: int = 0
    kept_bytes: int = 0


@contextmanager
def peak(*, driver: bool = True) -> Iterator[Peak]:
    """Watch GPU memory over the block; with `driver` it is asked about every half millisecond.

    The plugin resets torch's peak for its own figures: what was reached until then is kept here.
    """
    found = Peak()
    if not torch.cuda.is_available():
        yield found
        return
    before = allocated()
    torch.cuda.empty_cache()
    free = lowest = torch.cuda.mem_get_info()[0]
    reset = torch.cuda.reset_peak_memory_stats
    reset()
    highest = before
    done = threading.Event()

    def keep_and_reset(*arguments: Any) -> None:
        nonlocal highest
        highest = max(highest, torch.cuda.max_memory_allocated())
        reset(*arguments)

    def watch() -> None:
        nonlocal lowest
        while not done.is_set():
            lowest = min(lowest, torch.cuda.mem_get_info()[0])
            time.sleep(0.0005)

    watcher = threading.Thread(target=watch)
    if driver:
        watcher.start()
    torch.cuda.reset_peak_memory_stats = keep_and_reset
    try:
        yield found
        torch.cuda.synchronize()
    finally:
        done.set()
        if driver:
            watcher.join()
        torch.cuda.reset_peak_memory_stats = reset
    found.torch_bytes = max(highest, torch.cuda.max_memory_allocated()) - before
    found.driver_bytes = free - lowest
    found.kept_bytes = allocated() - before


def allocated() -> int:
    """Return torch's bytes in tensors, when all that was given to the GPU is done."""
    if not torch.cuda.is_available():
        return 0
    torch.cuda.synchronize()
    return int(torch.cuda.memory_allocated())
