"""How slow a source may be while others wait for the place of its transfer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from lorafleet.errors import SourceUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")
_POLL_SECONDS = 1.0
"""How often one whose patience is at an end sees whether others wait by now."""


class Patience:
    """Waits for what is read; what comes pays for the time, at `rate` bytes a second, 0 for any pace.

    Only time spent waiting for the source counts: engines and limits on what is sent may be slow.
    At most `seconds` are saved up, so that a source cannot be fast first and hold the place then.
    """

    def __init__(
        self, adapter: str, rate: float, seconds: float, others: Callable[[], bool]
    ) -> None:
        self._adapter = adapter
        self._rate = rate
        self._most = self._left = seconds
        self._others = others
        self._bytes = 0
        self._waited = 0.0

    async def wait(self, read: asyncio.Future[_T], amount: int) -> _T:
        """Return what a read of `amount` bytes gives. Raises what it raises, and SourceUnavailable
        when it is too slow for those that wait: engines keep what they have, for the next attempt."""
        loop = asyncio.get_running_loop()
        began, left = loop.time(), self._left
        while not read.done():
            waited = loop.time() - began
            if self._rate and waited >= left and self._others():
                raise self._too_slow(self._waited + waited)
            more = left - waited
            await asyncio.wait({read}, timeout=more if more > 0 else _POLL_SECONDS)
        waited = loop.time() - began
        self._waited += waited
        self._bytes += amount
        paid = amount / self._rate if self._rate else 0.0
        self._left = min(self._most, max(0.0, left - waited) + paid)
        return read.result()

    def _too_slow(self, waited: float) -> SourceUnavailable:
        return SourceUnavailable(
            f"adapter {self._adapter}: the source gave {self._bytes} bytes in {waited:.0f} s, and others "
            f"wait for a transfer: expected {self._rate:.0f} bytes a second; its turn comes again"
        )
