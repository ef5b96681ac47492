"""Work that is done in small parts: a generator that yields after each, and returns the result."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Generator

T = TypeVar("T")


def exhaust(parts: Generator[object, None, T]) -> T:
    """Do all of it now; returns its result."""
    while True:
        try:
            next(parts)
        except StopIteration as stop:
            result: T = stop.value
            return result
