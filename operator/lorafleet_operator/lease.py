"""What to do with the leases of the shards now. Pure.

There is one lease for each shard, and operators compete for them. Whoever holds one renews it; one
that nobody renewed for as long as its record says may be taken. Clocks of different machines are
never compared: each operator counts, on its own clock, since when it has seen a record unchanged.
Every write names the version that it is based on, so of two that come to the same record one fails.

Balance: a lease goes at once to an operator that holds no more than the others; who holds two or more
less than another asks for one of its leases, one at a time, and that one gives it up.

Operators that divide the pools into another number of shards are kept apart (while that number is
being changed): nobody takes a lease while another number is in use. Two that take at the same time
see each other, for a lease counts only after a look at all of them that began after it was taken.
"""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

RENEW_PART: Final = 1 / 3
"""Part of a lease's time after which it is renewed: two renewals may fail."""
ACT_PART: Final = 0.8
"""Part of a lease's time during which its holder acts: the rest is for what was sent before the end
and comes late, and for clocks that do not run equally fast."""
COURTESY_PART: Final = 1 / 5
"""Part of a lease's time for which a free one is left to operators that hold fewer."""
PROMISE_PART: Final = 1 / 3
"""Part of a lease's time for which one that was given up is left to who asked for it."""


def shard_of(pool: str, shards: int) -> int:
    """Return the shard of the pool `<namespace>/<name>`: the same in every process."""
    return zlib.crc32(pool.encode()) % shards


@dataclass(frozen=True)
class Record:
    """A lease as the API server has it."""

    shard: int
    version: str = ""
    """Its resourceVersion, "" if there is no such lease yet."""
    holder: str = ""
    """Identity of the operator that holds it, "" if nobody does."""
    seconds: float = 0.0
    """For how long it holds without renewal."""
    renewed: str = ""
    """When its holder says that it renewed it: only ever compared with itself."""
    acquired: str = ""
    transitions: int = 0
    shards: int = 0
    """Number of shards that its holder knows."""
    asked_by: str = ""
    """Identity of an operator that would like to have it, "" if none would."""

    @property
    def sign_of_life(self) -> tuple[str, str, int]:
        """What its holder changes with each renewal, and nobody else does."""
        return self.holder, self.renewed, self.transitions


@dataclass(frozen=True)
class Seen:
    """A record, and since when (on this machine's clock) its holder has not changed it."""

    record: Record
    since: float

    @property
    def free_at(self) -> float:
        """When it is, or was, free to be taken."""
        return self.since + (self.record.seconds if self.record.holder else 0.0)

    def live(self, now: float) -> bool:
        """Return whether somebody may hold it."""
        return bool(self.record.holder) and now < self.free_at


class Do(StrEnum):
    """What to write."""

    TAKE = "take"
    RENEW = "renew"
    GIVE_UP = "give up"
    ASK = "ask"


@dataclass(frozen=True)
class Step:
    """One write, based on `record`."""

    do: Do
    record: Record


@dataclass(frozen=True)
class Me:
    """Who decides."""

    identity: str
    shards: int
    seconds: float


def divided_otherwise(me: Me, seen: Mapping[int, Seen], now: float) -> bool:
    """Return whether another operator holds a lease of another number of shards."""
    return any(
        each.live(now) and each.record.holder != me.identity and each.record.shards != me.shards
        for each in seen.values()
    )


def decide(
    me: Me,
    seen: Mapping[int, Seen],
    held: Mapping[int, float],
    taken: Collection[int],
    now: float,
) -> list[Step]:
    """Return what to write now.

    seen: every lease, and at least those of `me.shards`. held: shard -> when it was last renewed.
    taken: shards whose lease has been taken, but does not count yet.
    """
    others = Counter(
        each.record.holder
        for each in seen.values()
        if each.live(now) and each.record.holder != me.identity
    )
    apart = divided_otherwise(me, seen, now)
    mine = len(held) + len(taken)
    steps: list[Step] = []
    for shard in range(me.shards):
        each = seen[shard]
        record = each.record
        if shard in held:
            wanted = mine > others[record.asked_by] + 1 and record.asked_by not in ("", me.identity)
            if wanted and not any(step.do is Do.GIVE_UP for step in steps):
                steps.append(Step(Do.GIVE_UP, record))
                mine -= 1
            elif now >= held[shard] + me.seconds * RENEW_PART:
                steps.append(Step(Do.RENEW, record))
        elif shard in taken:
            if apart:
                steps.append(Step(Do.GIVE_UP, record))
        elif not apart and (
            record.holder == me.identity
            or now >= each.free_at + _patience(me, record, mine, others)
        ):
            steps.append(Step(Do.TAKE, record))
            mine += 1
    busy = apart or taken or any(step.do is Do.TAKE for step in steps)
    return steps if busy else steps + _ask(me, seen, others, mine, now)


def _patience(me: Me, record: Record, mine: int, others: Counter[str]) -> float:
    """Return for how long a free lease is left to others."""
    if not record.holder and record.asked_by not in ("", me.identity):
        return me.seconds * PROMISE_PART
    return me.seconds * COURTESY_PART if mine > min(others.values(), default=mine) else 0.0


def _ask(
    me: Me, seen: Mapping[int, Seen], others: Counter[str], mine: int, now: float
) -> list[Step]:
    """Return the request for one lease of who holds the most, if that makes the two more equal."""
    live = [seen[shard].record for shard in range(me.shards) if seen[shard].live(now)]
    if not others or any(record.asked_by == me.identity for record in live):
        return []
    most = max(others, key=lambda holder: (others[holder], holder))
    theirs = [record for record in live if record.holder == most and not record.asked_by]
    if others[most] <= mine + 1 or not theirs:
        return []
    return [Step(Do.ASK, theirs[zlib.crc32(me.identity.encode()) % len(theirs)])]
