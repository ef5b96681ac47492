"""Protobuf's wire format, as far as the stream messages need it."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from lorafleet.errors import TransferInterrupted

if TYPE_CHECKING:
    from collections.abc import Iterator

VARINT = 0
FIXED64 = 1
BYTES = 2
FIXED32 = 5
_MAX_FIELD = (1 << 29) - 1
_MOST_FIELDS = 64
"""Of one message, those of later versions among them: each takes microseconds of an event loop."""
_MAX_UINT64 = (1 << 64) - 1


def varint(value: int) -> bytes:
    """Return `value` (0 to 2^64 - 1) as a varint. Raises ValueError outside that range."""
    if not 0 <= value <= _MAX_UINT64:
        raise ValueError(f"{value} is no uint64")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field_key(field: int, kind: int) -> bytes:
    """Return the key that precedes a field's value."""
    return varint(field << 3 | kind)


class Fields:
    """The fields of one message, in order: (field, wire type, value).

    Values of length-delimited fields are views; groups are refused. Raises
    TransferInterrupted for a truncated message, for lengths beyond the buffer and for too many.
    """

    def __init__(self, raw: memoryview) -> None:
        self._raw = raw
        self._position = 0

    def __iter__(self) -> Iterator[tuple[int, int, int | memoryview]]:
        for number in count(1):
            if not self.left:
                return
            if number > _MOST_FIELDS:
                raise TransferInterrupted(f"message has more than {_MOST_FIELDS} fields")
            key = self._varint()
            field, kind = key >> 3, key & 7
            if not 1 <= field <= _MAX_FIELD:
                raise TransferInterrupted(f"message has a field number {field}")
            if kind == VARINT:
                yield field, kind, self._varint()
            elif kind == BYTES:
                yield field, kind, self._take(self._varint())
            elif kind in (FIXED32, FIXED64):
                size = 4 if kind == FIXED32 else 8
                yield field, kind, int.from_bytes(self._take(size), "little")
            else:
                raise TransferInterrupted(f"message has a field of wire type {kind}")

    @property
    def left(self) -> int:
        """Bytes behind the fields that were read."""
        return len(self._raw) - self._position

    def _take(self, size: int) -> memoryview:
        if size > self.left:
            raise TransferInterrupted(f"message promises {size} bytes, {self.left} are left")
        start, self._position = self._position, self._position + size
        return self._raw[start : self._position]

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & _MAX_UINT64
        raise TransferInterrupted("message has a varint of more than ten bytes")
