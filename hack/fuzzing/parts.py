"""One input is one file: byte strings, each behind its length (4 bytes, little-endian)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def join(parts: Iterable[bytes]) -> bytes:
    """Return the parts as one input."""
    return b"".join(len(part).to_bytes(4, "little") + part for part in parts)


def split(data: bytes) -> list[bytes]:
    """Return the parts of an input; a last one that is cut short is as long as it is."""
    parts, at = [], 0
    while at + 4 <= len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        parts.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return parts
