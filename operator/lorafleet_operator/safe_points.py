"""Moments at which trainers let a pool recycle engines: calls that are open, and what the status says.

The status holds a time, renewed while a call lasts: with the operator killed the safe point is over
then, and another operator goes on with it until then. What ends here is over at once.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from lorafleet.errors import StagingBusy

from lorafleet_operator.api.v1alpha1 import SafePoint

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from datetime import datetime

    from lorafleet_operator.recycling import Recycled

LEASE_SECONDS: Final = 30
MOST_OF_A_POOL: Final = 16
MOST_OF_AN_ACCOUNT: Final = 8
"""Of a pool's: one trainer leaves room for those of others."""
_SHOWN: Final = 8


class Held:
    """One call that holds a safe point open."""

    def __init__(self, account: str) -> None:
        self.account = account
        self._news: Recycled | None = None
        self._told = asyncio.Event()

    def tell(self, news: Recycled) -> None:
        """Let `next` return this; what nobody has asked for yet is forgotten."""
        self._news = news
        self._told.set()

    async def next(self, seconds: float) -> Recycled | None:
        """Return what the next pass over the pool sees, None if none ends within `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._told.wait()
        self._told.clear()
        news, self._news = self._news, None
        return news


class SafePoints:
    """The calls that hold a safe point open at this operator, by pool."""

    def __init__(self) -> None:
        self._held: dict[str, list[Held]] = {}

    @contextmanager
    def hold(self, pool: str, account: str) -> Iterator[Held]:
        """Hold one of the pool `<namespace>/<name>` open. Raises StagingBusy when too many do."""
        calls = self._held.setdefault(pool, [])
        if len(calls) >= MOST_OF_A_POOL:
            raise StagingBusy(f"{len(calls)} calls hold safe points of pool {pool} open already")
        if sum(each.account == account for each in calls) >= MOST_OF_AN_ACCOUNT:
            raise StagingBusy(
                f"{account} holds {MOST_OF_AN_ACCOUNT} safe points of pool {pool} open"
            )
        mine = Held(account)
        calls.append(mine)
        try:
            yield mine
        finally:
            calls.remove(mine)

    def of(self, pool: str) -> Sequence[str] | None:
        """Return the accounts that hold one open; None if nobody did since this operator began."""
        calls = self._held.get(pool)
        return None if calls is None else [each.account for each in calls]

    def show(self, pool: str, news: Recycled) -> None:
        """Tell the calls about the pool what a pass over it has seen."""
        for each in self._held.get(pool, ()):
            each.tell(news)

    def keep(self, pools: Collection[str]) -> None:
        """Forget pools that are gone and that no call is about."""
        self._held = {k: calls for k, calls in self._held.items() if calls or k in pools}


def safe_point(
    before: SafePoint | None, accounts: Sequence[str] | None, now: datetime
) -> SafePoint | None:
    """Return what the status is to say, None for no safe point. Pure.

    before: what it says. accounts: see SafePoints.of.
    """
    if before is not None and before.open_until - now > timedelta(seconds=LEASE_SECONDS):
        before = None  # nobody renews that far ahead: the clock was set back
    if accounts:
        until = before.open_until if before is not None else now
        if until - now < timedelta(seconds=LEASE_SECONDS / 2):
            until = now.replace(microsecond=0) + timedelta(seconds=LEASE_SECONDS)
        return SafePoint(open_until=until, opened_by=sorted(set(accounts))[:_SHOWN])
    if accounts is None and before is not None and now < before.open_until:
        return before
    return None
