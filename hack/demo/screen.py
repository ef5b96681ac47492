"""What the demo prints: steps with the time so far, and tables."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_STARTED = time.monotonic()
_SAY_SECONDS = 15


def chapter(title: str) -> None:
    """Announce a part of the story."""
    print(f"\n-- {title}", flush=True)


def step(text: str) -> None:
    """Say what happens now, or what was seen, with the seconds since the start."""
    print(f"[{time.monotonic() - _STARTED:4.0f} s] {text}", flush=True)


class Patience:
    """Says every while that something goes on, so that nobody takes it for stuck."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._since = self._told = time.monotonic()

    def wait(self) -> None:
        """Called again and again until it is done."""
        now = time.monotonic()
        if now - self._told > _SAY_SECONDS:
            self._told = now
            step(f"{self._what}: {now - self._since:.0f} s so far")


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print rows in aligned columns; numbers to the right."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[at]) for row in [list(headers), *cells]) for at in range(len(headers))]
    numeric = [bool(cells) and all(_number(row[at]) for row in cells) for at in range(len(headers))]
    rule = ["-" * width for width in widths]
    for row in [list(headers), rule, *cells]:
        aligned = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ]
        print("  " + "  ".join(aligned).rstrip(), flush=True)


def _number(cell: str) -> bool:
    return bool(cell) and cell[0].isdigit() and all(part[0].isdigit() for part in cell.split("/"))
