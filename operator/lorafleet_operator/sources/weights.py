"""One safetensors file: its header and where its data begins; nothing of its tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lorafleet.errors import InvalidAdapter, TooLarge
from lorafleet.header import SafetensorsHeader, header_length, parse_header

from lorafleet_operator.aside import aside
from lorafleet_operator.sources.base import MAX_READ_BYTES, Segment

if TYPE_CHECKING:
    from lorafleet_operator.sources.base import Blob, Buffer
    from lorafleet_operator.sources.bounds import SourceSettings

_LFS = b"version https://git-lfs"
_PAGES = (b"<!doctype", b"<html", b"<?xml")


@dataclass(frozen=True)
class Weights:
    """The tensors of an adapter: a header and the places of the data it describes."""

    header_bytes: bytes
    """JSON of the header, without the length prefix."""
    data_bytes: int
    segments: tuple[Segment, ...]
    blobs: tuple[Blob, ...]
    """The files they come from."""
    normalized: tuple[str, ...] = ()


@dataclass(frozen=True)
class SafetensorsFile:
    """A parsed file: tensor data begins at byte `data_start`."""

    blob: Blob
    header: SafetensorsHeader
    header_bytes: bytes
    data_start: int


async def read_whole(blob: Blob, limit: int) -> bytes:
    """Return the whole small file; `TooLarge` above `limit` bytes, before reading any."""
    if blob.size > limit:
        raise TooLarge(f"{blob.name} has {blob.size} bytes, at most {limit} are allowed")
    return await read_span(blob, 0, blob.size)


async def read_span(blob: Blob, offset: int, length: int) -> bytes:
    """Return a span that may be longer than one read."""
    parts: list[Buffer] = []
    while length:
        take = min(length, MAX_READ_BYTES)
        parts.append(await blob.read(offset, take))
        offset += take
        length -= take
    return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)


async def read_safetensors(blob: Blob, settings: SourceSettings) -> SafetensorsFile:
    """Return the checked header of a safetensors file.

    Raises `InvalidAdapter`: not such a file, malformed, or shorter than its header says.
    """
    first = bytes(await blob.read(0, min(32, blob.size)))
    _refuse_other_content(blob.name, first)
    length = header_length(first[:8], blob.name)
    if 8 + length > blob.size:
        raise InvalidAdapter(
            f"{blob.name} is incomplete "
            f"(have {blob.size} bytes, header wants at least {8 + length})"
        )
    header_bytes = await read_span(blob, 8, length)
    # Parsing a large header takes long enough to stall the loop.
    rest = blob.size - 8 - length
    header = await aside(length, parse_header, header_bytes, rest, blob.name)
    if len(header.tensors) > settings.max_tensors:
        raise TooLarge(
            f"{blob.name} has {len(header.tensors)} tensors, "
            f"at most {settings.max_tensors} are allowed"
        )
    return SafetensorsFile(blob, header, header_bytes, 8 + length)


async def read_single(blob: Blob, settings: SourceSettings) -> Weights:
    """Return the weights of an adapter that is one safetensors file."""
    file = await read_safetensors(blob, settings)
    if not file.header.tensors:
        raise InvalidAdapter(f"no LoRA tensors in {blob.name}")
    data_bytes = file.header.data_bytes
    return Weights(
        header_bytes=file.header_bytes,
        data_bytes=data_bytes,
        segments=(Segment(0, data_bytes, blob, file.data_start),),
        blobs=(blob,),
    )


def _refuse_other_content(name: str, first: bytes) -> None:
    start = first.lstrip().lower()
    if start.startswith(_LFS):
        raise InvalidAdapter(f"{name} is a Git LFS pointer, not the file it points to")
    if start.startswith(_PAGES):
        raise InvalidAdapter(f"{name} is a web page, not a safetensors file (a login page?)")
