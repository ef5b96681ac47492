"""A second stream, on which the device works on what has arrived while more arrives."""

from __future__ import annotations

import functools
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def beside(device: torch.device) -> Iterator[None]:
    """Enqueue the block on a second stream, behind all that the current one has so far."""
    if device.type != "cuda":
        yield
        return
    second = _second(device)
    second.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(second):
        yield


def join(device: torch.device) -> None:
    """Make the current stream wait, on the device, for the second one."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).wait_stream(_second(device))


@functools.cache
def _second(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
