"""Who has to look again: one flag for each object, set by events and cleared by its loop."""

from __future__ import annotations

import asyncio


class Wakeups:
    """Flags by key. A wake-up during a pass is kept for the next one."""

    def __init__(self) -> None:
        self._flags: dict[str, asyncio.Event] = {}

    def wake(self, key: str) -> None:
        """Make the loop of `key` run a pass soon; no-op for keys without a loop."""
        if key in self._flags:
            self._flags[key].set()

    def enter(self, key: str) -> None:
        """Say that `key` has a loop now."""
        self._flags.setdefault(key, asyncio.Event())

    def leave(self, key: str) -> None:
        """Say that the loop of `key` is over."""
        self._flags.pop(key, None)

    async def wait(self, key: str, seconds: float) -> None:
        """Return at the next wake-up of `key` or after `seconds`."""
        flag = self._flags[key]
        try:
            async with asyncio.timeout(seconds):
                await flag.wait()
        except TimeoutError:
            return
        finally:
            flag.clear()
