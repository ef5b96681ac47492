"""What may be printed: columns, colours, and nothing that a terminal would obey.

Status text comes from tenants, engines and sources. Every character that cannot be printed is shown
as its escape before it leaves the program.
"""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_UNPRINTABLE: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_GOOD, _BAD, _UNSURE = "32", "31", "33"
COLOURS: Final = {
    "True": _GOOD,
    "Ready": _GOOD,
    "Warm": _GOOD,
    "current": _GOOD,
    "chosen": _GOOD,
    "False": _BAD,
    "Refused": _BAD,
    "Unreachable": _BAD,
    "given up": _BAD,
    "refused": _BAD,
    "Unknown": _UNSURE,
    "Starting": _UNSURE,
    "Stock": _UNSURE,
    "trial": _UNSURE,
}
"""Cells that get a colour, by the whole of their text. No meaning is in the colour alone."""


def printable(text: object) -> str:
    """Return one line without anything that a terminal would obey; white space becomes one space."""
    line = str(text)
    if line.isascii() and line.isprintable() and "  " not in line:
        return line.strip()
    return "".join(
        char.encode("unicode_escape").decode()
        if unicodedata.category(char) in _UNPRINTABLE
        else char
        for char in " ".join(line.split())
    )


def width(text: str) -> int:
    """Return how many columns of a terminal a printable text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0
        if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me")
        else 1 + (unicodedata.east_asian_width(char) in "WF")
        for char in text
    )


def cut(text: str, columns: int) -> str:
    """Return a text that takes at most `columns`, with `..` where something is left out."""
    if width(text) <= columns:
        return text
    kept, room = "", columns - 2
    for char in text:
        room -= width(char)
        if room < 0:
            break
        kept += char
    return (kept + "..")[: max(columns, 0)]


class Table:
    """Lines of equal columns; the last column is as wide as it has to be.

    Columns only grow: a list that comes page by page is printed as it comes.
    """

    def __init__(
        self, head: Sequence[str], *, colour: bool = False, columns: int = 0, headed: bool = True
    ) -> None:
        self._head = list(head)
        self._colour = colour
        self._columns = columns
        self._widths = [len(each) for each in head]
        self._headed = not headed

    def lines(self, rows: Iterable[Sequence[object]]) -> list[str]:
        """Return the next rows as lines, before the first ones the head.

        What is empty is shown as `-`, a single space as nothing.
        """
        cells = [["" if cell == " " else printable(cell) or "-" for cell in row] for row in rows]
        for row in cells:
            self._widths = [max(w, width(c)) for w, c in zip(self._widths, row, strict=True)]
        found = [self._line(row) for row in cells]
        if not self._headed:
            self._headed = True
            found.insert(0, self._line(self._head, head=True))
        return found

    def _line(self, row: Sequence[str], *, head: bool = False) -> str:
        room = self._columns or 1 << 30
        parts = []
        for number, (cell, wanted) in enumerate(zip(row, self._widths, strict=True)):
            if room <= 0:
                break
            shown = cut(cell, room)
            pad = "" if number == len(row) - 1 else " " * (min(wanted, room) - width(shown))
            parts.append((self._painted(shown, "1" if head else COLOURS.get(cell, ""))) + pad)
            room -= wanted + 2
        return "  ".join(parts).rstrip()

    def _painted(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour and code else text


def age(since: str, now: datetime | None = None) -> str:
    """Return the time since an RFC 3339 time as kubectl shows it; "" of what is no time."""
    try:
        then = datetime.fromisoformat(since)
        seconds = int(((now or datetime.now(UTC)) - then).total_seconds())
    except (ValueError, TypeError):  # no time, or one without a zone
        return ""
    for length, unit, until in ((1, "s", 120), (60, "m", 180 * 60), (3600, "h", 48 * 3600)):
        if seconds < until:
            return f"{max(seconds, 0) // length}{unit}"
    return f"{seconds // 86400}d"


def size(count: int | None) -> str:
    """Return a number of bytes for people; "" of one that nobody knows."""
    if count is None:
        return ""
    for unit, shift in (("Gi", 30), ("Mi", 20), ("Ki", 10)):
        if count >= 1 << shift:
            return f"{count / (1 << shift):.1f}{unit}"
    return f"{count}B"
