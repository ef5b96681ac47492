"""The few questions to the GPU; on a machine without one they are answered with nothing."""

from __future__ import annotations

import time

import torch

CUDA = torch.cuda.is_available()
_PIECE = 256 << 20


def synchronize() -> None:
    """Wait for all that was given to the GPU."""
    if CUDA:
        torch.cuda.synchronize()


def pinned() -> int:
    """Return the bytes of torch's page-locked blocks, as it rounds them, without its spare ones."""
    if not CUDA:
        return 0
    torch._C._host_emptyCache()
    return int(torch.cuda.host_memory_stats()["allocated_bytes.current"])


def copy_seconds(source: torch.Tensor, target: torch.Tensor) -> float:
    """Return the seconds of plain copies of page-locked `source` to `target`, in big pieces."""
    stream = torch.cuda.Stream() if CUDA else None
    synchronize()
    start = time.perf_counter()
    with torch.cuda.stream(stream):
        for at in range(0, source.numel(), _PIECE):
            target[at : at + _PIECE].copy_(source[at : at + _PIECE], non_blocking=True)
    synchronize()
    return time.perf_counter() - start


def room_for(source: torch.Tensor) -> torch.Tensor:
    """Return memory of the GPU of that size.

    Kept over many copies: to give it back makes torch ask the driver anew for everybody's memory.
    """
    return torch.empty_like(source, device="cuda" if CUDA else "cpu")


def copies_seconds(sources: list[torch.Tensor]) -> float:
    """Return the seconds of plain copies of page-locked tensors to the GPU, one for each."""
    targets = [torch.empty_like(source, device="cuda" if CUDA else "cpu") for source in sources]
    synchronize()
    start = time.perf_counter()
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source, non_blocking=True)
    synchronize()
    return time.perf_counter() - start
