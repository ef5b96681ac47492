"""Command lines: what is wrong with one is told in one line, as kubectl does, not below a page of usage."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable


class Parser(argparse.ArgumentParser):
    """The parser of a program of ours, and of each of its verbs."""

    def error(self, message: str) -> NoReturn:
        """End with status 2 and the line."""
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def whole(low: int, high: int = (1 << 63) - 1) -> Callable[[str], int]:
    """Return what reads a whole number within bounds, for `type` of an argument."""

    def read(text: str) -> int:
        try:
            found = int(text)
        except ValueError:
            found = low - 1
        if not low <= found <= high:
            bounds = f"{low} or more" if high == (1 << 63) - 1 else f"{low} to {high}"
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number, {bounds}")
        return found

    return read
