"""Several safetensors files and their index, merged into one data section without copying."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from lorafleet.errors import InvalidAdapter, PathNotAllowed, TooLarge
from lorafleet.header import SafetensorsHeader, TensorEntry, render_header

from lorafleet_operator.sources import bounds
from lorafleet_operator.sources.base import Blob, Segment, Tree
from lorafleet_operator.sources.bounds import one_line
from lorafleet_operator.sources.weights import (
    SafetensorsFile,
    Weights,
    read_safetensors,
    read_whole,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


_MAX_NAME = 255
"""Bytes of a file's name on the disks that there are."""


async def read_shards(tree: Tree, index: Blob, settings: bounds.SourceSettings) -> Weights:
    """Return the weights that the index names, shard after shard in the order of their names.

    Raises `InvalidAdapter` if a shard is missing or holds other tensors than the index says.
    """
    text = await read_whole(index, bounds.MAX_INDEX_BYTES)
    weight_map = await asyncio.to_thread(_weight_map, index.name, text)
    names = sorted(set(weight_map.values()))
    if len(names) > settings.max_shards:
        raise TooLarge(
            f"{index.name} names {len(names)} files, at most {settings.max_shards} are allowed"
        )
    files = []
    for name in names:
        blob = await tree.open(_plain_name(name, index.name))
        if blob is None:
            raise InvalidAdapter(f"{one_line(name)} is missing (named in {index.name})")
        files.append(await read_safetensors(blob, settings))
    return await asyncio.to_thread(_merge, index, files, weight_map)


def _weight_map(name: str, text: bytes) -> dict[str, str]:
    try:
        index = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidAdapter(f"{name} is not JSON") from None
    found = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(found, dict) or not all(isinstance(file, str) for file in found.values()):
        raise InvalidAdapter(f"{name} has no weight_map of tensor names to file names")
    if not found:
        raise InvalidAdapter(f"no LoRA tensors in {name}")
    return found


def _plain_name(name: str, index: str) -> str:
    plain = name.isprintable() and len(name.encode()) <= _MAX_NAME and "\\" not in name
    if not plain or "/" in name or name in ("", ".", ".."):
        raise PathNotAllowed(
            f"{index} names the file {one_line(name)!r}, which is not a plain file name"
        )
    return name


def _merge(index: Blob, files: list[SafetensorsFile], weight_map: Mapping[str, str]) -> Weights:
    entries: list[TensorEntry] = []
    segments: list[Segment] = []
    start = 0
    for file in files:
        for entry in file.header.tensors:
            named = weight_map.get(entry.name)
            if named is None:
                raise InvalidAdapter(
                    f"{file.blob.name} holds {one_line(entry.name)}, not in {index.name}"
                )
            if named != file.blob.name:
                raise InvalidAdapter(
                    f"two tensors for {one_line(entry.name)}: {index.name} names {named}, "
                    f"{file.blob.name} holds it too"
                )
            begin, end = start + entry.begin, start + entry.end
            entries.append(TensorEntry(entry.name, entry.dtype, entry.shape, begin, end))
        if file.header.data_bytes:
            segments.append(Segment(start, file.header.data_bytes, file.blob, file.data_start))
        start += file.header.data_bytes
    missing = weight_map.keys() - {entry.name for entry in entries}
    if missing:
        first = min(missing)
        raise InvalidAdapter(f"{weight_map[first]} lacks {one_line(first)} (named in {index.name})")
    merged = SafetensorsHeader(tuple(entries), dict(files[0].header.metadata), start)
    return Weights(
        header_bytes=render_header(merged)[8:],
        data_bytes=start,
        segments=tuple(segments),
        blobs=(index, *(file.blob for file in files)),
        normalized=(
            f"{len(files)} shards merged into one adapter_model.safetensors "
            f"with {len(entries)} tensors",
        ),
    )
