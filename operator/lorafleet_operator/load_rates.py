"""How often the adapters of a tenant may be loaded: a token bucket for each tenant of a pool.

A pass that comes too early waits for nothing: it is told how long, says so, and comes again. What
waits keeps its turn, so that a tenant's loads are not decided by who asks most often.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

BURST_SECONDS: Final = 10.0
"""What an idle tenant saves up, in seconds of its rate; at least one load."""


class LoadRates:
    """The buckets of all tenants. `clock`: seconds that only grow."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._next: dict[tuple[str, str], float] = {}  # pool, tenant -> when a token is free
        self._turns: dict[str, float] = {}  # adapter -> when its turn is

    def wait(self, pool: str, tenant: str, adapter: str, per_minute: int) -> float:
        """Take a token for a load of the adapter; return the seconds until it may be used.

        0: now. Else nothing is loaded; the next call that is not too early returns 0.
        """
        now, each = self._clock(), 60.0 / per_minute
        turn = self._turns.pop(adapter, None)
        if turn is None:
            saved = max(BURST_SECONDS - each, 0.0)
            turn = max(self._next.get((pool, tenant), now - saved), now - saved)
            self._next[pool, tenant] = turn + each
        if turn <= now:
            return 0.0
        self._turns[adapter] = turn
        return turn - now

    def behind(self, pool: str, tenant: str, per_minute: int) -> bool:
        """Return whether loads of the tenant wait for a token."""
        last = self._next.get((pool, tenant), 0.0) - 60.0 / per_minute
        return last > self._clock()

    def forget(self, adapter: str) -> None:
        """Drop the turn of an adapter that is gone."""
        self._turns.pop(adapter, None)

    def keep_pools(self, pools: set[str]) -> None:
        """Drop the buckets of pools that are not among `pools`."""
        self._next = {key: when for key, when in self._next.items() if key[0] in pools}
