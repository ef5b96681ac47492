"""Copies of evenly spaced rows between host and device, in one call of the driver.

torch makes a contiguous copy of anything else on the host first, pageable and while everybody
waits; the copy engine reads rows where they lie.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lorafleet_vllm import cuda_host

if TYPE_CHECKING:
    import torch


class Rows(NamedTuple):
    """Memory of a view in its own order: `count` rows of `width` bytes, `pitch` bytes apart."""

    width: int
    pitch: int
    count: int


class Pitched(NamedTuple):
    """`count` rows of `width` bytes that two views have in common."""

    width: int
    count: int
    target_pitch: int
    source_pitch: int


def rows_of(view: torch.Tensor) -> Rows | None:
    """Return the rows that `view` consists of, or None if they are not evenly spaced."""
    item = view.element_size()
    width, pitch, count = item, 0, 1
    for length, stride in zip(reversed(view.shape), reversed(view.stride()), strict=True):
        if length == 1:
            continue
        if count == 1 and stride * item == width:
            width *= length
        elif count == 1:
            pitch, count = stride * item, length
        elif stride * item == pitch * count:
            count *= length
        else:
            return None
    if count == 1:
        return Rows(width, width, 1)
    return Rows(width, pitch, count) if pitch >= width else None


def pitched(target: torch.Tensor, source: torch.Tensor) -> Pitched | None:
    """Return how one call copies `source` to `target`, of equal shape and dtype; None if none can."""
    to, come = rows_of(target), rows_of(source)
    if to is None or come is None:
        return None
    width = min(to.width, come.width)
    count = to.width * to.count // width
    pitches = []
    for rows in (to, come):
        if rows.width == width:
            pitches.append(rows.pitch)
        elif rows.count == 1 and rows.width % width == 0:
            pitches.append(width)  # the contiguous side is cut as the other one needs it
        else:
            return None
    return Pitched(width, count, *pitches)


def copy_rows(target: torch.Tensor, source: torch.Tensor, rows: Pitched) -> None:
    """Copy `source` to `target` on the current stream, without waiting."""
    if target.is_cuda:
        cuda_host.copy_rows(target, source, *rows)
    else:
        target.copy_(source)
