"""What is done once, when an engine starts, because it would be too long between two steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def warm(device: torch.device, dtype: torch.dtype) -> None:
    """Compile the kernels for slots of `dtype` on `device`; nothing to do on a CPU."""
    if device.type == "cuda" and dtype.itemsize == 2:
        from lorafleet_vllm import crate_kernel, fingerprint_kernel  # both need a driver

        fingerprint_kernel.warm(device)
        crate_kernel.warm(device, dtype)
