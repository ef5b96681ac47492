"""The page of vLLM's metrics that the fake engine shows."""

from __future__ import annotations

import time


def metrics_page(started: float, busy: list[str], max_loras: int, *, lora: bool) -> str:
    """Return what vLLM tells of itself: when it started, and which adapters are busy."""
    lines = [
        "# TYPE vllm:num_requests_running gauge",
        "vllm:num_requests_running 0",
        "# TYPE process_start_time_seconds gauge",
        f"process_start_time_seconds {started}",
    ]
    if lora:
        labels = f'max_lora="{max_loras}",running_lora_adapters="{",".join(busy)}"'
        lines += [
            "# TYPE vllm:lora_requests_info gauge",
            f'vllm:lora_requests_info{{{labels},waiting_lora_adapters=""}} {time.time()}',
        ]
    return "\n".join(lines) + "\n"
