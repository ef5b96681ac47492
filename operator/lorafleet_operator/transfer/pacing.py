"""Limits on what the operator sends: bytes a second of a pool, of a tenant and of a namespace in it.

Each limit is a token bucket that all transfers of its key draw from, first come, first served.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

BURST_SECONDS: Final = 0.25
"""What an idle bucket saves up, in seconds of its rate."""


class TokenBucket:
    """`rate` tokens a second. One take may be larger than what is saved: the next one waits."""

    def __init__(
        self,
        rate: float,
        *,
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.rate = rate
        self._clock = clock or asyncio.get_running_loop().time
        self._sleep = sleep
        self._paid_until = self._clock() - BURST_SECONDS

    async def take(self, amount: int) -> None:
        """Wait until `amount` tokens may be spent."""
        now = self._clock()
        begin = max(self._paid_until, now - BURST_SECONDS)
        self._paid_until = begin + amount / self.rate
        if begin > now:
            await self._sleep(begin - now)


class Paces:
    """The buckets of all pools."""

    def __init__(self, make: Callable[[float], TokenBucket] = TokenBucket) -> None:
        self._make = make
        self._buckets: dict[tuple[str, str], TokenBucket] = {}

    def of(
        self, pool: str, rates: Mapping[str, int | None]
    ) -> Callable[[int], Awaitable[None]] | None:
        """Return what to await before bytes are sent, None if nothing limits them.

        rates: whose limit -> bytes a second, None for none, as the pool's spec says now. What waits
        for an earlier one has drawn nothing from those behind it: name the narrowest first.
        """
        found = (self._bucket((pool, whose), rate) for whose, rate in rates.items())
        buckets = [bucket for bucket in found if bucket is not None]
        if not buckets:
            return None

        async def take(amount: int) -> None:
            for bucket in buckets:
                await bucket.take(amount)

        return take

    def forget(self, pools: set[str]) -> None:
        """Drop the buckets of pools that are not among `pools`."""
        self._buckets = {key: each for key, each in self._buckets.items() if key[0] in pools}

    def _bucket(self, key: tuple[str, str], rate: int | None) -> TokenBucket | None:
        if rate is None:
            self._buckets.pop(key, None)
            return None
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = self._make(rate)
        bucket.rate = rate
        return bucket
