"""Wakes who tells trainers of an adapter, as soon as there may be something to tell."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lorafleet_operator.cluster.bodies import Bodies
    from lorafleet_operator.wake import Wakeups


class Bell:
    """Rings when the adapter's body is another, and with what wakes its passes: news of engines."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    @classmethod
    @contextmanager
    def hung(cls, key: str, uid: str, bodies: Bodies, wakeups: Wakeups) -> Iterator[Self]:
        """Have one for the adapter `<namespace>/<name>` as long as the block runs."""
        bell = cls()
        wakeups.add(key, bell)
        try:
            with bodies.told(uid, bell.wake):
                yield bell
        finally:
            wakeups.remove(key, bell)

    def wake(self, *, news: bool = False) -> None:
        """Ring."""
        self._rung.set()

    def cut(self, *, news: bool = True) -> None:
        """Ring."""
        self._rung.set()

    async def wait(self, seconds: float) -> None:
        """Return when it has rung since the last wait, at the latest after so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._rung.wait()
        self._rung.clear()
