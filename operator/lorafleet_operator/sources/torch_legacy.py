"""The format of `torch.save` from before 1.6, which it still writes when it is told to.

Five pickles (a magic number, a version, the machine's sizes, the tensors, the storages' keys), then
for each key a count of eight bytes and the elements. Nothing of it is executed (`torch_pickle`).
"""

from __future__ import annotations

import asyncio
import io
from typing import TYPE_CHECKING

from lorafleet.errors import InvalidAdapter

from lorafleet_operator.sources import bounds
from lorafleet_operator.sources.torch_pickle import (
    ITEM_BYTES,
    StoredTensor,
    read_pickle,
    tensors_of,
)
from lorafleet_operator.sources.weights import read_span

if TYPE_CHECKING:
    from lorafleet_operator.sources.base import Blob

_MAGIC = 0x1950A86A20F9469CFC6C
_VERSION = 1001
_COUNT_BYTES = 8

Places = dict[str, tuple[int, int]]
"""Of each storage by its key: the byte of the file at which it begins, and its size."""


async def read_legacy(blob: Blob) -> tuple[dict[str, StoredTensor], Places]:
    """Return the tensors by name and the places of their storages.

    Raises `InvalidAdapter`: an unsafe pickle, a file that is cut, something else than tensors.
    """
    head = await read_span(blob, 0, min(blob.size, bounds.MAX_PICKLE_BYTES))
    return await asyncio.to_thread(_read, io.BytesIO(head), blob)


def _read(head: io.BytesIO, blob: Blob) -> tuple[dict[str, StoredTensor], Places]:
    magic, _ = read_pickle(head, blob.name)
    if magic != _MAGIC:
        raise InvalidAdapter(f"{blob.name} is a pickle, but not a file of torch.save")
    version, _ = read_pickle(head, blob.name)
    machine, _ = read_pickle(head, blob.name)
    if version != _VERSION or not isinstance(machine, dict) or not machine.get("little_endian"):
        raise InvalidAdapter(f"{blob.name} is not little-endian, or of another version of torch")
    value, storages = read_pickle(head, blob.name)
    tensors = tensors_of(value, blob.name)
    keys, _ = read_pickle(head, blob.name)
    named = isinstance(keys, list) and all(isinstance(key, str) for key in keys)
    if not named or sorted(keys) != sorted(storages):
        raise InvalidAdapter(f"{blob.name} has other storages than its tensors need")
    places: Places = {}
    position = head.tell()
    for key in keys:
        begin = position + _COUNT_BYTES
        size = storages[key].elements * ITEM_BYTES[storages[key].dtype]
        places[key] = (begin, size)
        position = begin + size
    if position > blob.size:
        raise InvalidAdapter(
            f"{blob.name} is incomplete (have {blob.size} bytes, its storages want {position})"
        )
    return tensors, places
