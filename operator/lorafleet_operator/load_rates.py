"""How often the adapters of a tenant may be loaded: a token bucket for each tenant of a pool.

A pass that comes too early waits for nothing: it is told how long, says so, and comes again. What
waits keeps its turn, so that a tenant's loads are not decided by who asks most often.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

BURST_SECONDS: Final = 10.0
"""What an idle tenant saves up, in seconds of its rate; at least one load."""


@dataclass
class _Bucket:
    """What one tenant of one pool may load."""

    per_minute: int
    next: float = float("-inf")
    """When a token is free."""
    turns: dict[str, float] = field(default_factory=dict)
    """When each adapter that waits may use the token that it has taken."""


class LoadRates:
    """The buckets of all tenants. `clock`: seconds that only grow."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._buckets: dict[tuple[str, str], _Bucket] = {}  # by pool and tenant

    def wait(self, pool: str, tenant: str, adapter: str, per_minute: int) -> float:
        """Take a token for a load of the adapter; return the seconds until it may be used.

        0: now. Else nothing is loaded; the next call that is not too early returns 0. Another rate
        begins anew: who waits by the old one does not have to.
        """
        now, each = self._clock(), 60.0 / per_minute
        bucket = self._buckets.get((pool, tenant))
        if bucket is None or bucket.per_minute != per_minute:
            bucket = self._buckets[pool, tenant] = _Bucket(per_minute)
        turn = bucket.turns.pop(adapter, None)
        if turn is None:
            turn = max(bucket.next, now - max(BURST_SECONDS - each, 0.0))
            bucket.next = turn + each
        if turn <= now:
            return 0.0
        bucket.turns[adapter] = turn
        return turn - now

    def behind(self, pool: str, tenant: str) -> bool:
        """Return whether loads of the tenant wait for a token."""
        bucket, now = self._buckets.get((pool, tenant)), self._clock()
        return bucket is not None and any(turn > now for turn in bucket.turns.values())

    def forget(self, pool: str, tenant: str, adapter: str) -> None:
        """Drop the turn of an adapter that is gone."""
        bucket = self._buckets.get((pool, tenant))
        if bucket is not None:
            bucket.turns.pop(adapter, None)

    def keep_pools(self, pools: set[str]) -> None:
        """Drop the buckets of pools that are not among `pools`."""
        self._buckets = {key: each for key, each in self._buckets.items() if key[0] in pools}
