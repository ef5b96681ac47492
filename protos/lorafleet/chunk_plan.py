"""Where a transfer cuts the source's data; both sides compute it from the manifest."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from lorafleet.dtypes import ITEM_BYTES
from lorafleet.errors import TooLarge, TransferInterrupted

if TYPE_CHECKING:
    from lorafleet.header import SafetensorsHeader

MIN_CHUNK_BYTES = 16
MAX_CHUNKS = 1 << 20


def chunk_plan(header: SafetensorsHeader, chunk_bytes: int) -> list[tuple[int, int]]:
    """Cut the data section into (offset, length) ranges of at most `chunk_bytes`.

    Every cut falls on an element border of the tensor it cuts. Raises TransferInterrupted for
    a `chunk_bytes` below 16, TooLarge when there would be more than 2^20 chunks.
    """
    if chunk_bytes < MIN_CHUNK_BYTES:
        raise TransferInterrupted(
            f"chunk_bytes is {chunk_bytes}, expected {MIN_CHUNK_BYTES} or more"
        )
    # A cut moves back by less than an element, so that a chunk has more than half its step.
    if header.data_bytes // chunk_bytes >= MAX_CHUNKS // 2:
        raise TooLarge(
            f"{header.data_bytes} bytes in chunks of {chunk_bytes} are more than {MAX_CHUNKS // 2}"
        )
    tensors = header.tensors
    begins = [tensor.begin for tensor in tensors]
    plan, position = [], 0
    while position < header.data_bytes:
        cut = position + chunk_bytes
        if cut >= header.data_bytes:
            cut = header.data_bytes
        else:
            tensor = tensors[bisect_right(begins, cut) - 1]
            cut -= (cut - tensor.begin) % ITEM_BYTES[tensor.dtype]
        plan.append((position, cut - position))
        position = cut
    return plan
