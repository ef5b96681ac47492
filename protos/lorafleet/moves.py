"""Which bytes of a source go where in the canonical data, and the part of it one chunk feeds."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from lorafleet.dtypes import ITEM_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lorafleet.factors import Window


class Copy(NamedTuple):
    """`rows` runs of `elements` elements from the source's data into canonical data.

    Offsets are in bytes from the start of each data section; strides and steps are in
    elements of that side's dtype. Element j of row i goes from
    `src_offset + (i * src_row_stride + j * src_step) * itemsize` to the like place of dst.
    With the defaults it is one contiguous run. Dtypes are safetensors names.
    """

    src_offset: int
    dst_offset: int
    elements: int
    src_dtype: str
    dst_dtype: str
    rows: int = 1
    src_row_stride: int = 0
    dst_row_stride: int = 0
    src_step: int = 1
    dst_step: int = 1

    def last(self) -> int:
        """Return the offset of the last element in canonical data."""
        reach = (self.rows - 1) * self.dst_row_stride + (self.elements - 1) * self.dst_step
        return self.dst_offset + reach * ITEM_BYTES[self.dst_dtype]


class Move(NamedTuple):
    """One window's copy: source bytes [begin, end) hold `rows` rows that do not interleave."""

    begin: int
    end: int
    dst: int
    dtype: str
    item: int
    rows: int
    elements: int
    row_stride: int
    step: int
    dst_row_stride: int
    dst_step: int


class Moves:
    """All moves of one adapter, found by source range."""

    def __init__(self, moves: Iterable[Move], dst_dtype: str) -> None:
        self.dst_dtype = dst_dtype
        self._dst_item = ITEM_BYTES[dst_dtype]
        self._moves = self._merged(sorted(moves, key=attrgetter("begin")))
        self._begins = [move.begin for move in self._moves]
        # The moves before position i end at or before _reach[i - 1]; it never falls.
        self._reach = list(accumulate((move.end for move in self._moves), max))

    def __len__(self) -> int:
        return len(self._moves)

    def copies(self, begin: int, end: int) -> Iterator[Copy]:
        """Yield what source bytes [begin, end) feed; the ends fall on element borders."""
        first = bisect_right(self._reach, begin)
        for move in self._moves[first : bisect_left(self._begins, end)]:
            low, high = max(begin, move.begin), min(end, move.end)
            if low < high:
                if move.rows == 1:
                    yield self._run(move, low, high)
                elif high - low == move.end - move.begin:
                    yield self._block(move, 0, move.rows, 0, move.elements)
                else:
                    yield from self._rows(move, low - move.begin, high - move.begin)

    def _run(self, move: Move, low: int, high: int) -> Copy:
        skipped = (low - move.begin) // move.item
        elements = (high - low) // move.item
        dst = move.dst + skipped * self._dst_item
        return Copy(low, dst, elements, move.dtype, self.dst_dtype)

    def _rows(self, move: Move, low: int, high: int) -> Iterator[Copy]:
        """Yield the whole rows in bytes [low, high) of the move, and its cut first and last."""
        low, high = low // move.item, high // move.item
        stride, step, last = move.row_stride, move.step, move.elements - 1
        first_row, last_row = low // stride, min((high - 1) // stride, move.rows - 1)
        first_whole = first_row + (low > first_row * stride)
        last_whole = last_row - (last_row * stride + last * step >= high)
        if first_whole <= last_whole:
            yield self._block(move, first_whole, last_whole + 1, 0, move.elements)
        for row in sorted({first_row, last_row}):
            if first_whole <= row <= last_whole:
                continue
            start = max(0, -((row * stride - low) // step))
            stop = min(move.elements, -((row * stride - high) // step))
            if start < stop:
                yield self._block(move, row, row + 1, start, stop)

    def _block(self, move: Move, row: int, end_row: int, start: int, stop: int) -> Copy:
        src = row * move.row_stride + start * move.step
        dst = row * move.dst_row_stride + start * move.dst_step
        return Copy(
            move.begin + src * move.item,
            move.dst + dst * self._dst_item,
            stop - start,
            move.dtype,
            self.dst_dtype,
            end_row - row,
            move.row_stride,
            move.dst_row_stride,
            move.step,
            move.dst_step,
        )

    def _merged(self, moves: list[Move]) -> list[Move]:
        """Join runs that follow one another on both sides."""
        merged: list[Move] = []
        for move in moves:
            last = merged[-1] if merged else None
            if (
                last is not None
                and last.rows == 1 == move.rows
                and last.end == move.begin
                and last.dtype == move.dtype
                and last.dst + last.elements * self._dst_item == move.dst
            ):
                merged[-1] = last._replace(end=move.end, elements=last.elements + move.elements)
            else:
                merged.append(move)
        return merged


def move(window: Window, dst: int, dst_row_stride: int) -> Move | None:
    """Return the move of a window to canonical byte `dst`; None if it has no elements.

    The longer source stride becomes the rows, so that rows never interleave in the source.
    """
    entry, start, rows, cols, row_stride, col_stride = window
    dtype = entry.dtype
    item = ITEM_BYTES[dtype]
    begin = entry.begin + start * item
    elements = rows * cols
    if elements == 0:
        return None
    if col_stride == 1 and (rows == 1 or row_stride == cols == dst_row_stride):
        end = begin + elements * item
        return Move(begin, end, dst, dtype, item, 1, elements, elements, 1, 0, 1)
    outer = (rows, row_stride, dst_row_stride)
    inner = (cols, col_stride, 1)
    if rows == 1 or (cols > 1 and col_stride > row_stride):
        outer, inner = inner, outer
    (count, stride, dst_stride), (length, step, dst_step) = outer, inner
    span = (count - 1) * stride + (length - 1) * step + 1
    end = begin + span * item
    return Move(begin, end, dst, dtype, item, count, length, stride, step, dst_stride, dst_step)
