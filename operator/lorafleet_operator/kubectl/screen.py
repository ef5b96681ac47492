"""What a terminal gets beside plain lines: a table that is drawn again, a progress bar.

Without a terminal, or on one that can do nothing (TERM=dumb), there is neither.
"""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TextIO

from lorafleet_operator.kubectl.text import cut, printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_BAR: Final = 20


@dataclass(frozen=True)
class Screen:
    """Where output goes, and what may be done there."""

    out: TextIO
    live: bool
    """Whether lines may be drawn over."""
    colour: bool

    @classmethod
    def of(cls, out: TextIO, environment: Mapping[str, str] = os.environ) -> Screen:
        """Return what `out` is. NO_COLOR (https://no-color.org) takes the colours away."""
        live = out.isatty() and environment.get("TERM", "dumb") != "dumb"
        return cls(out, live, live and not environment.get("NO_COLOR"))

    def size(self) -> tuple[int, int]:
        """Return columns and lines."""
        found = shutil.get_terminal_size()
        return max(found.columns, 20), max(found.lines, 5)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Take the whole terminal for a while; what was on it comes back, also after a SIGTERM."""
        with unwinding():
            self.out.write(_ENTER)
            try:
                yield
            finally:
                self.out.write(_LEAVE)
                self.out.flush()

    def draw(self, lines: Sequence[str]) -> None:
        """Draw lines over what was drawn before; those that do not fit are left out."""
        shown = "\r\n".join(f"{line}{_CLEAR_LINE}" for line in lines[: self.size()[1] - 1])
        self.out.write(f"{_HOME}{shown}{_CLEAR_BELOW}")
        self.out.flush()


@contextmanager
def unwinding() -> Iterator[None]:
    """Have a SIGTERM end the program as an exception does: what was begun is tidied up."""
    before = signal.signal(signal.SIGTERM, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(*_: object) -> None:
    raise SystemExit(128 + signal.SIGTERM)


class Progress:
    """One line that tells how far something is; without a terminal a line for each news of it."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._shown = ""

    @property
    def live(self) -> bool:
        """Whether it is drawn over; else each news of it is a line that stays."""
        return self._screen.live

    def show(self, done: int, of: int, text: str, count: str = "") -> None:
        """Show `done` of `of` parts, in other words `count`, and what is waited for."""
        count, text = count or f"{done}/{of}", printable(text)
        if self._screen.live:
            filled = _BAR * min(done, of) // of if of > 0 else 0
            bar = f"[{'#' * filled}{'-' * (_BAR - filled)}] {count} {text}"
            line = f"\r{cut(bar, self._screen.size()[0] - 1)}{_CLEAR_LINE}"
        else:
            line = f"{count} {text}\n"
        if line != self._shown:
            self._shown = line
            self._screen.out.write(line)
            self._screen.out.flush()

    def clear(self) -> None:
        """Take the bar away; lines stay."""
        if self._screen.live and self._shown:
            self._screen.out.write(f"\r{_CLEAR_LINE}")
            self._screen.out.flush()
            self._shown = ""
