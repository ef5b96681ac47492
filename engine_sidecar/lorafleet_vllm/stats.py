"""What one worker counts, where it happens."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

_PAGE = 4096
_FIRST_LOADS = 8
T = TypeVar("T")


@dataclass
class WorkerStats:
    """Counters of one worker process; bytes are device bytes unless they say `host`.

    `loads` counts first loads, `rebuilds` loads of an id that was loaded before, `evictions`
    adapters that LRU dropped from the host tier, `slot_evictions` those that it dropped from a
    slot, `refills` how often all slots were written again after the engine slept. `temporary_*` are of the last load or rebuild: memory above the slots at its peak, and
    what of it stayed. `baseline_*` are of the first report after the first few loads: what these
    allocate once and for all is no growth.
    """

    loads: int = 0
    rebuilds: int = 0
    evictions: int = 0
    slot_evictions: int = 0
    activations: int = 0
    offloads: int = 0
    refills: int = 0
    refused: int = 0
    temporary_peak_bytes: int = 0
    temporary_kept_bytes: int = 0
    seconds: Counter[str] = field(default_factory=Counter)
    baseline_host_bytes: int = 0
    baseline_loads: int = 0

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the wall-clock seconds of the block to `phase`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] += time.perf_counter() - start  # type: ignore[assignment]

    def measured_parts(
        self, phase: str, parts: Generator[None, None, T], device: torch.device, *, more: bool
    ) -> Generator[bool, None, T]:
        """Add the seconds of `parts` to `phase`, without those of whoever runs in between.

        Their temporary memory on `device` is measured as `device_memory` does. Yields False after each.
        """
        while True:
            with self.timed(phase), self.device_memory(device, more=more):
                try:
                    next(parts)
                except StopIteration as stop:
                    result: T = stop.value
                    return result
            more = True
            yield False

    @contextmanager
    def device_memory(self, device: torch.device, *, more: bool = False) -> Iterator[None]:
        """Measure the temporary device memory of the block.

        With `more` it belongs to the load of the block before: what that left is temporary as well.
        """
        if device.type != "cuda":
            yield
            return
        torch.cuda.reset_peak_memory_stats(device)
        before, _ = _allocated(device)
        try:
            yield
        finally:
            after, highest = _allocated(device)
            left = self.temporary_kept_bytes if more else 0
            peak = left + highest - before
            self.temporary_peak_bytes = max(peak, self.temporary_peak_bytes if more else 0)
            self.temporary_kept_bytes = max(left + after - before, 0)

    def to_dict(self, device: torch.device) -> dict[str, Any]:
        """Return the counters and the process's memory as plain numbers."""
        cuda = device.type == "cuda"
        resident, private = _host_bytes()
        if not self.baseline_loads and self.loads >= _FIRST_LOADS:
            self.baseline_host_bytes, self.baseline_loads = private, self.loads
        return {
            **asdict(self),
            "seconds": dict(self.seconds),
            "torch_allocated_bytes": torch.cuda.memory_allocated(device) if cuda else 0,
            "torch_reserved_bytes": torch.cuda.memory_reserved(device) if cuda else 0,
            "resident_host_bytes": resident,
            "private_host_bytes": private,
        }


def _allocated(device: torch.device) -> tuple[int, int]:
    """Return torch's device bytes now and at their peak (`memory_allocated` takes ten times as long)."""
    stats = torch.cuda.memory_stats_as_nested_dict(device)["allocated_bytes"]["all"]
    return int(stats["current"]), int(stats["peak"])


def _host_bytes() -> tuple[int, int]:
    """Return the process's resident bytes, and those that it shares with no file."""
    _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
    return resident * _PAGE, (resident - shared) * _PAGE
