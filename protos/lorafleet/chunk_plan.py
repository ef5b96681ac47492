"""Where a transfer cuts the source's data; both sides compute it from the manifest."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from lorafleet.dtypes import ITEM_BYTES
from lorafleet.errors import TooLarge, TransferInterrupted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lorafleet.header import SafetensorsHeader

MIN_CHUNK_BYTES = 16
MAX_CHUNKS = 1 << 20


def chunk_plan(
    header: SafetensorsHeader, chunk_bytes: int, cut_before: Sequence[int] = ()
) -> list[tuple[int, int]]:
    """Cut the data section into (offset, length) ranges of at most `chunk_bytes`.

    Every cut falls on an element border of the tensor it cuts. `cut_before`: indexes of tensors, in
    the order of their offsets, that no chunk runs into from the one before. Raises
    TransferInterrupted for a `chunk_bytes` below 16 or for tensors that there are not, TooLarge when
    there would be more than 2^20 chunks.
    """
    if chunk_bytes < MIN_CHUNK_BYTES:
        raise TransferInterrupted(
            f"chunk_bytes is {chunk_bytes}, expected {MIN_CHUNK_BYTES} or more"
        )
    tensors = header.tensors
    if cut_before and not 0 <= min(cut_before) <= max(cut_before) < len(tensors):
        raise TransferInterrupted(
            f"cuts before tensors {min(cut_before)} to {max(cut_before)}, there are {len(tensors)}"
        )
    # A cut moves back by less than an element, so that a chunk has more than half its step.
    if header.data_bytes // chunk_bytes + len(cut_before) >= MAX_CHUNKS // 2:
        raise TooLarge(
            f"{header.data_bytes} bytes in chunks of {chunk_bytes} are more than {MAX_CHUNKS // 2}"
        )
    begins = [tensor.begin for tensor in tensors]
    plan, position = [], 0
    for border in sorted({header.data_bytes, *(begins[index] for index in cut_before)}):
        while position < border:
            cut = position + chunk_bytes
            if cut >= border:
                cut = border
            else:
                tensor = tensors[bisect_right(begins, cut) - 1]
                cut -= (cut - tensor.begin) % ITEM_BYTES[tensor.dtype]
            plan.append((position, cut - position))
            position = cut
    return plan
