"""A profile of one piece of work: which calls of host and device took how long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import accelerator
from torch.profiler import ProfilerActivity, profile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def traced(work: Callable[[], object], path: Path) -> dict[str, Any]:
    """Run `work` under torch's profiler; write its table to `path`.

    Returns the dozen entries with the most time: count, milliseconds of host and of device.
    """
    activities = [ProfilerActivity.CPU]
    if accelerator.CUDA:
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as found:
        work()
        accelerator.synchronize()
    entries = sorted(
        found.key_averages(),
        key=lambda each: max(each.self_device_time_total, each.self_cpu_time_total),
        reverse=True,
    )
    order = "self_cuda_time_total" if accelerator.CUDA else "self_cpu_time_total"
    path.write_text(found.key_averages().table(sort_by=order, row_limit=40) + "\n")
    return {
        each.key: {
            "count": each.count,
            "host_ms": each.self_cpu_time_total / 1e3,
            "device_ms": each.self_device_time_total / 1e3,
        }
        for each in entries[:12]
    }
