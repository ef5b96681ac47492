"""The directory of a zip file, read by ranges: names, sizes and places of stored entries.

Reads the end of the file, the central directory and the local headers; never an entry's data.
Every number is checked against the file's size before it is used.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lorafleet.errors import InvalidAdapter, TooLarge

from lorafleet_operator.sources.bounds import one_line
from lorafleet_operator.sources.weights import read_span

if TYPE_CHECKING:
    from lorafleet_operator.sources.base import Blob

ZIP_MAGIC = b"PK\x03\x04"
_END = struct.Struct("<4s4H2IH")
_END_64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR_64 = struct.Struct("<4sIQI")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_LOCAL = struct.Struct("<4s5H3I2H")
_MAX_COMMENT = 65535
_MAX_DIRECTORY_BYTES = 64 << 20
_ABSENT_32 = 0xFFFFFFFF
_WINDOW = 64 << 10


@dataclass(frozen=True)
class Entry:
    """One stored file: `size` bytes, local header at `header_offset`."""

    name: str
    size: int
    header_offset: int


@dataclass(frozen=True)
class Archive:
    """The entries by name below the archive's one top folder."""

    entries: dict[str, Entry]

    def find(self, name: str) -> Entry | None:
        """Return the entry at `name` below the top folder, None if there is none."""
        return self.entries.get(name)

    async def data_offsets(self, blob: Blob, entries: list[Entry]) -> dict[str, int]:
        """Return for each entry's name the byte of the file at which its data begins."""
        found: dict[str, int] = {}
        window, window_start = b"", 0
        for entry in sorted(entries, key=lambda entry: entry.header_offset):
            at = entry.header_offset
            if not window_start <= at <= window_start + len(window) - _LOCAL.size:
                if at + _LOCAL.size > blob.size:
                    raise _damaged(blob)
                window_start = at
                window = bytes(await blob.read(at, min(_WINDOW, blob.size - at)))
            fields = _LOCAL.unpack_from(window, at - window_start)
            if fields[0] != ZIP_MAGIC:
                raise _damaged(blob)
            start = at + _LOCAL.size + fields[9] + fields[10]
            if start + entry.size > blob.size:
                raise _damaged(blob)
            found[entry.name] = start
        return found


async def read_archive(blob: Blob, max_entries: int) -> Archive:
    """Return the archive's entries; `InvalidAdapter` if it is damaged or compressed."""
    count, size, offset = await _directory_place(blob)
    if count > max_entries or size > _MAX_DIRECTORY_BYTES:
        raise TooLarge(f"{blob.name} lists {count} entries, at most {max_entries} are allowed")
    if offset + size > blob.size:
        raise _damaged(blob)
    directory = await read_span(blob, offset, size)
    entries: dict[str, Entry] = {}
    position = 0
    for _ in range(count):
        entry, position = _entry(blob, directory, position)
        _, _, below = entry.name.partition("/")
        if below in entries:
            raise InvalidAdapter(f"{blob.name} lists {one_line(below)!r} twice")
        entries[below] = entry
    return Archive(entries)


async def _directory_place(blob: Blob) -> tuple[int, int, int]:
    """Return entry count, size and offset of the central directory."""
    length = min(blob.size, _MAX_COMMENT + _END.size + _LOCATOR_64.size)
    tail = bytes(await blob.read(blob.size - length, length))
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or at + _END.size > len(tail):
        raise InvalidAdapter(f"{blob.name} is incomplete (have {blob.size} bytes, no directory)")
    _, _, _, _, count, size, offset, _ = _END.unpack_from(tail, at)
    locator = at - _LOCATOR_64.size
    if locator >= 0 and tail[locator : locator + 4] == b"PK\x06\x07":
        _, _, end_64, _ = _LOCATOR_64.unpack_from(tail, locator)
        if end_64 + _END_64.size > blob.size:
            raise _damaged(blob)
        fields = _END_64.unpack(bytes(await blob.read(end_64, _END_64.size)))
        if fields[0] != b"PK\x06\x06":
            raise _damaged(blob)
        count, size, offset = fields[7], fields[8], fields[9]
    return count, size, offset


def _entry(blob: Blob, directory: bytes, position: int) -> tuple[Entry, int]:
    if position + _CENTRAL.size > len(directory):
        raise _damaged(blob)
    fields = _CENTRAL.unpack_from(directory, position)
    flags, method = fields[3], fields[4]
    packed, size, name_length, extra_length, comment_length = fields[8:13]
    header_offset = fields[16]
    name_at = position + _CENTRAL.size
    extra_at = name_at + name_length
    end = extra_at + extra_length + comment_length
    if fields[0] != b"PK\x01\x02" or end > len(directory):
        raise _damaged(blob)
    name = directory[name_at:extra_at].decode("utf-8", "replace")
    wide = _wide_numbers(directory[extra_at : extra_at + extra_length])
    numbers = []
    for number in (size, packed, header_offset):
        if number == _ABSENT_32:
            if not wide:
                raise _damaged(blob)
            number = wide.pop(0)
        numbers.append(number)
    size, packed, header_offset = numbers
    if method != 0 or flags & 1 or packed != size:
        raise InvalidAdapter(f"{blob.name} is compressed or encrypted: not a file of torch.save")
    return Entry(name, size, header_offset), end


def _wide_numbers(extra: bytes) -> list[int]:
    """Return the 64-bit numbers of an entry's zip64 field."""
    position = 0
    while position + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, position)
        body = extra[position + 4 : position + 4 + length]
        if kind == 1:
            count = len(body) // 8
            return list(struct.unpack_from(f"<{count}Q", body))
        position += 4 + length
    return []


def _damaged(blob: Blob) -> InvalidAdapter:
    return InvalidAdapter(f"{blob.name} is a damaged archive")
