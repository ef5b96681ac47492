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
    """Memory of a view in its own order: `height` rows of `width` bytes, `pitch` bytes apart."""

    width: int
    pitch: int
    height: int


class Pitched(NamedTuple):
    """`height` rows of `width` bytes that two views have in common."""

    width: int
    height: int
    target_pitch: int
    source_pitch: int


def rows_of(view: torch.Tensor) -> Rows | None:
    """Return the rows that `view` consists of, or None if they are not evenly spaced."""
    item = view.element_size()
    width, pitch, height = item, 0, 1
    for length, stride in zip(reversed(view.shape), reversed(view.stride()), strict=True):
        if length == 1:
            continue
        if height == 1 and stride * item == width:
            width *= length
        elif height == 1:
            pitch, height = stride * item, length
        elif stride * item == pitch * height:
            height *= length
        else:
            return None
    if height == 1:
        return Rows(width, width, 1)
    return Rows(width, pitch, height) if pitch >= width else None


def pitched(target: torch.Tensor, source: torch.Tensor) -> Pitched | None:
    """Return how one call copies `source` to `target`, of equal shape and dtype; None if none can."""
    to, come = rows_of(target), rows_of(source)
    if to is None or come is None:
        return None
    width = min(to.width, come.width)
    height = to.width * to.height // width
    pitches = []
    for rows in (to, come):
        if rows.width == width:
            pitches.append(rows.pitch)
        elif rows.height == 1 and rows.width % width == 0:
            pitches.append(width)  # the contiguous side is cut as the other one needs it
        else:
            return None
    return Pitched(width, height, *pitches)


def copy(
    target: torch.Tensor, source: torch.Tensor, rows: Pitched | None, largest: int | None = None
) -> None:
    """Copy `source` to `target` on the current stream, without waiting.

    `rows` is None where both are contiguous. At most `largest` bytes are copied at once.
    """
    if rows is None and (largest is None or source.nbytes <= largest):
        target.copy_(source, non_blocking=True)
        return
    nbytes = source.nbytes
    # One row for all of it: the driver's call is the same.
    rows = rows or Pitched(nbytes, 1, nbytes, nbytes)
    if not (target.is_cuda and cuda_host.copy_rows(target, source, *rows, largest)):
        target.copy_(source, non_blocking=True)
