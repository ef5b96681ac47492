"""For which pools this operator acts: the competition for the leases of the shards, carried out.

Looks at all leases about once a second (a fifteenth of their time), and writes what lease.py decides:
one renewal of each lease that is held per third of its time, and little else. Nothing else waits
for it: whoever acts asks `term`, which needs no answer from anybody.
"""

from __future__ import annotations

import asyncio
import logging
import platform
import random
import secrets
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Self

from lorafleet_operator import metrics
from lorafleet_operator.candidate import Candidate, changed
from lorafleet_operator.cluster.leases import Leases, own_namespace
from lorafleet_operator.cluster.requests import NoAnswer
from lorafleet_operator.lease import Do, Me, shard_of
from lorafleet_operator.term import Term, now

if TYPE_CHECKING:
    from collections.abc import Callable

    from lorafleet_operator.lease import Step
    from lorafleet_operator.settings import OperatorSettings

_LOG: Final = logging.getLogger(__name__)
_LOOK_PART: Final = 1 / 15
"""Part of a lease's time between two looks: a lease that is given up is taken by the next one."""

_ANSWER_PART: Final = 1 / 5
"""Part of a lease's time within which a request is to be answered."""
_LAST_LOOK_SECONDS: Final = 2.0
"""How long the end waits for requests that run."""
_FORMAT: Final = "%Y-%m-%dT%H:%M:%S.%fZ"


class Tenure:
    """What this operator holds. `on_change` is called after each change of that."""

    def __init__(self, leases: Leases, me: Me, on_change: Callable[[set[int]], None]) -> None:
        self._leases = leases
        self._me = me
        self._on_change = on_change
        self._candidate = Candidate(me)
        self._known: dict[int, Term] = {}  # as of the last call of on_change
        self._problem = ""
        self._running: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        metrics.SHARDS.set(me.shards)
        metrics.SHARDS_HELD.set(0)

    @classmethod
    def of(cls, settings: OperatorSettings, on_change: Callable[[set[int]], None]) -> Self | None:
        """Return the one that the settings ask for, None if the operator is to act alone."""
        namespace = settings.lease_namespace or own_namespace()
        if not namespace:
            metrics.SHARDS.set(1)
            metrics.SHARDS_HELD.set(1)
            _LOG.info("no leases: this operator acts for every pool, as if it were alone")
            return None
        seconds = settings.lease_seconds
        timeout = max(1.0, seconds * _ANSWER_PART)
        identity = settings.identity or f"{platform.node()}-{secrets.token_hex(4)}"
        leases = Leases(namespace, settings.lease_name, timeout)
        return cls(leases, Me(identity, settings.shards, seconds), on_change)

    @property
    def held(self) -> list[int]:
        """The shards whose leases are held now."""
        return sorted(s for s, term in self._candidate.terms.items() if term.left() > 0)

    def __str__(self) -> str:
        shards = ", ".join(map(str, self.held)) or "none"
        return f"shards held by {self._me.identity}: {shards} of {self._me.shards}"

    def shard(self, pool: str) -> int:
        """Return the shard of a pool."""
        return shard_of(pool, self._me.shards)

    def term(self, pool: str) -> Term | None:
        """Return the term in which the pool is this operator's, None while it is not."""
        term = self._candidate.terms.get(self.shard(pool))
        return term if term is not None and term.left() > 0 else None

    def start(self) -> None:
        """Begin to compete."""
        self._running = asyncio.create_task(self._run(), name="leases")

    async def close(self) -> None:
        """Give up what is held, so that others need not wait for its end, and compete no more."""
        if self._running is not None:
            # Not cut off: what a request of it wrote would not be known, and no release could follow.
            self._stopping.set()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._running, _LAST_LOOK_SECONDS)
        await asyncio.gather(*map(self._do, self._candidate.give_up()))
        self._tell()
        await self._leases.close()

    async def _run(self) -> None:
        period = self._me.seconds * _LOOK_PART
        while not self._stopping.is_set():
            if await self._look():
                continue  # what was taken counts after a look that begins now
            with suppress(TimeoutError):
                async with asyncio.timeout(period * random.uniform(0.8, 1.0)):  # noqa: S311 - jitter
                    await self._stopping.wait()

    async def _look(self) -> bool:
        """Look at all leases and do what is to be done; return whether something was taken."""
        try:
            records = await self._leases.all()
        except NoAnswer as error:
            if str(error) != self._problem:
                _LOG.warning("cannot tell who holds which shard: %s", error)
            self._problem = str(error)
            self._candidate.run_out(now())
            self._tell()
            return False
        self._problem = ""
        self._candidate.look(records, now())
        steps = self._candidate.steps(now())
        self._tell()
        await asyncio.gather(*map(self._do, steps))
        self._candidate.run_out(now())
        self._tell()
        return any(step.do is Do.TAKE for step in steps)

    async def _do(self, step: Step) -> None:
        stamp, sent = datetime.now(UTC), now()
        text = stamp.strftime(_FORMAT)
        if text == step.record.renewed:  # others go by its change
            text = (stamp + timedelta(microseconds=1)).strftime(_FORMAT)
        with suppress(NoAnswer):  # the next look tells what came of it
            after = await self._leases.write(changed(step, self._me, text))
            if after is not None:
                self._candidate.written(step, after, sent, now())

    def _tell(self) -> None:
        """Call on_change if what is held is not what it was."""
        terms = dict(self._candidate.terms)
        lost = {shard for shard, term in self._known.items() if terms.get(shard) is not term}
        new = {shard for shard, term in terms.items() if self._known.get(shard) is not term}
        if not lost and not new:
            return
        self._known = terms
        for shard in sorted(lost):
            _LOG.info("shard %d is not ours any more", shard)
            metrics.SHARD_CHANGES.labels("lost").inc()
        for shard in sorted(new):
            _LOG.info("shard %d is ours", shard)
            metrics.SHARD_CHANGES.labels("taken").inc()
        metrics.SHARDS_HELD.set(len(terms))
        self._on_change(lost | new)
