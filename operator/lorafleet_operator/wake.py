"""Who has to look again: a flag for each loop, set by events about its object, cleared by the loop."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Flag:
    """What wakes one loop."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        """Make the loop run a pass soon."""
        self._event.set()

    async def wait(self, seconds: float) -> None:
        """Return at the next wake-up or after `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return
        finally:
            self._event.clear()


class Wakeups:
    """Flags by key. A wake-up during a pass is kept for the next one.

    A key may have two loops for a while: an object whose finalizer a person took away, and its
    namesake.
    """

    def __init__(self) -> None:
        self._flags: defaultdict[str, set[Flag]] = defaultdict(set)

    def wake(self, key: str) -> None:
        """Make the loops of `key` run a pass soon; no-op for keys without a loop."""
        for flag in self._flags.get(key, ()):
            flag.set()

    @contextmanager
    def loop(self, key: str) -> Iterator[Flag]:
        """Give a loop over `key` its flag for as long as the block runs."""
        flag = Flag()
        self._flags[key].add(flag)
        try:
            yield flag
        finally:
            self._flags[key].discard(flag)
            if not self._flags[key]:
                del self._flags[key]
