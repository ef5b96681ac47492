"""`adapter_model.bin`, which `torch.save` writes, served as a safetensors data section.

The storages lie uncompressed in the file, since 1.6 of torch in an archive, so a range of the data section is a range of the
file: nothing is unpacked, nothing of the pickle is executed (see `torch_pickle`).
"""

from __future__ import annotations

import asyncio
from math import prod

from lorafleet.errors import InvalidAdapter, TooLarge
from lorafleet.header import SafetensorsHeader, TensorEntry, render_header

from lorafleet_operator.sources import bounds
from lorafleet_operator.sources.base import Blob, Segment
from lorafleet_operator.sources.bounds import one_line
from lorafleet_operator.sources.strided import StridedBlob, is_contiguous, span
from lorafleet_operator.sources.torch_legacy import Places, read_legacy
from lorafleet_operator.sources.torch_pickle import ITEM_BYTES, StoredTensor, stored_tensors
from lorafleet_operator.sources.weights import Weights, read_span
from lorafleet_operator.sources.zip_archive import ZIP_MAGIC, Archive, Entry, read_archive


def is_torch_file(first: bytes) -> bool:
    """Return whether a file that begins with these (nine) bytes was written by `torch.save`."""
    # A safetensors length may begin with a pickle's two bytes, but then JSON follows.
    pickled = first[:1] == b"\x80" and first[1:2] in b"\x02\x03\x04\x05" and first[8:9] != b"{"
    return first[:4] == ZIP_MAGIC or pickled


async def read_torch_file(blob: Blob, settings: bounds.SourceSettings) -> Weights:
    """Return the weights that the archive holds.

    Raises `InvalidAdapter`: an unsafe pickle, a damaged archive, something else than tensors.
    """
    if bytes(await blob.read(0, min(4, blob.size))) == ZIP_MAGIC:
        tensors, places = await _read_archive(blob, settings)
    else:
        tensors, places = await read_legacy(blob)
    if not tensors:
        raise InvalidAdapter(f"no LoRA tensors in {blob.name}")
    if len(tensors) > settings.max_tensors:
        raise TooLarge(
            f"{blob.name} has {len(tensors)} tensors, at most {settings.max_tensors} are allowed"
        )
    placed = [
        (_begin(blob, places, name, tensor), name, tensor) for name, tensor in tensors.items()
    ]
    return _lay_out(blob, sorted(placed, key=lambda item: item[:2]))


async def _read_archive(
    blob: Blob, settings: bounds.SourceSettings
) -> tuple[dict[str, StoredTensor], Places]:
    archive = await read_archive(blob, max_entries=2 * settings.max_tensors)
    pickle = await _member(blob, archive, "data.pkl", bounds.MAX_PICKLE_BYTES)
    if archive.find("byteorder") is not None:
        order = await _member(blob, archive, "byteorder", 16)
        if order != b"little":
            raise InvalidAdapter(f"{blob.name} is not little-endian")
    tensors = await asyncio.to_thread(stored_tensors, pickle, blob.name)
    entries: dict[str, Entry] = {}
    for name, tensor in tensors.items():
        entry = archive.find(f"data/{tensor.storage}")
        if entry is None:
            raise InvalidAdapter(f"{blob.name} lacks the storage of {one_line(name)}")
        entries[tensor.storage] = entry
    starts = await archive.data_offsets(blob, list(entries.values()))
    return tensors, {key: (starts[entry.name], entry.size) for key, entry in entries.items()}


async def _member(blob: Blob, archive: Archive, name: str, limit: int) -> bytes:
    entry = archive.find(name)
    if entry is None:
        raise InvalidAdapter(f"{blob.name} has no {name}: not a file of torch.save")
    if entry.size > limit:
        raise TooLarge(f"{name} in {blob.name} has {entry.size} bytes, at most {limit} are allowed")
    start = (await archive.data_offsets(blob, [entry]))[entry.name]
    return await read_span(blob, start, entry.size)


def _begin(blob: Blob, places: Places, name: str, tensor: StoredTensor) -> int:
    """Return where the tensor's storage begins in the file; the tensor must lie inside it."""
    begin, size = places[tensor.storage]
    wanted = (tensor.offset + span(tensor.shape, tensor.strides)) * ITEM_BYTES[tensor.dtype]
    if wanted > size:
        raise InvalidAdapter(
            f"{one_line(name)} in {blob.name} reaches to byte {wanted} of a storage of {size} bytes"
        )
    return begin


def _lay_out(blob: Blob, placed: list[tuple[int, str, StoredTensor]]) -> Weights:
    """Put the tensors one after another in the order of the file."""
    entries: list[TensorEntry] = []
    segments: list[Segment] = []
    position = 0
    for start, name, tensor in placed:
        item = ITEM_BYTES[tensor.dtype]
        size = prod(tensor.shape) * item
        entries.append(TensorEntry(name, tensor.dtype, tensor.shape, position, position + size))
        if size:
            source, offset = _place(blob, start + tensor.offset * item, name, tensor)
            segments.append(Segment(position, size, source, offset))
        position += size
    header = SafetensorsHeader(tuple(entries), {"format": "pt"}, position)
    return Weights(
        header_bytes=render_header(header)[8:],
        data_bytes=position,
        segments=tuple(segments),
        blobs=(blob,),
        normalized=(f"{blob.name} converted to adapter_model.safetensors",),
    )


def _place(blob: Blob, start: int, name: str, tensor: StoredTensor) -> tuple[Blob, int]:
    if is_contiguous(tensor.shape, tensor.strides):
        return blob, start
    try:
        return StridedBlob(blob, start, tensor.shape, tensor.strides, ITEM_BYTES[tensor.dtype]), 0
    except ValueError as error:
        raise InvalidAdapter(f"{one_line(name)} in {blob.name} {error}") from None
