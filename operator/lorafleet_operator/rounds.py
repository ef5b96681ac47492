"""When each object has its next pass: one clock for all of them.

A task for each of ten thousand adapters, asleep most of the time, would be most of the operator's
memory. Here an object is one small record in a heap of due times, and a task only while its pass
runs. An error of a pass never ends an object's rounds; a pass may be cut off at any point, for the
next one, here or after a restart, goes on from what the engines say.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import math
import random
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from lorafleet_operator import metrics
from lorafleet_operator.fair import Turn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lorafleet_operator.settings import OperatorSettings
    from lorafleet_operator.wake import Wakeups

_LOG: Final = logging.getLogger(__name__)
_QUIET_SECONDS: Final = 5.0
"""Longest time after a failure during which wake-ups wait, but for news from people: a failure that
changes an inventory would wake its own round."""
_PLACES: Final = 64
"""Passes that run at a time: what one holds while it runs is a hundred times its record."""
_LONG_SECONDS: Final = 5.0
"""A pass that takes longer waits for something (a transfer, a load, requests that still run): it
leaves its place to others, so that a few slow engines do not hold up the fleet."""
_LOOKS_A_SECOND: Final = 50.0
"""Passes for which there is no reason but the time: about a tenth of a core. While a fleet comes up,
which takes the longer the larger it is, each minute was a pass more over all that was up already."""


@dataclass(frozen=True)
class Outcome:
    """How a pass ended."""

    well: bool
    """Whether nothing has to be tried again soon."""
    interval: float = math.inf
    """Seconds to the next pass after one that went well, if nothing wakes. By default only what no
    event told is missed by waiting: its turn among all comes, after `resync_seconds` or later."""


class Round:
    """The state of one object between its passes. Times are the loop's clock, seconds."""

    __slots__ = ("_rounds", "asked", "due", "failures", "key", "news", "quiet", "task", "uid")

    def __init__(self, rounds: Rounds, uid: str, key: str) -> None:
        self._rounds = rounds
        self.uid = uid
        self.key = key
        self.due = math.inf
        self.quiet = 0.0
        """Until then only news counts."""
        self.failures = 0
        self.asked = self.news = False
        """Whether it was woken since its last pass began, and whether by people."""
        self.task: asyncio.Task[Outcome | None] | None = None

    def wake(self, *, news: bool = False) -> None:
        """Have a pass soon; at once if people have changed something (`news`)."""
        self.asked = True
        self.news |= news
        self._rounds.woken(self)

    def cut(self, *, news: bool = True) -> None:
        """End the pass that runs now: what it does is not wanted any more. Another one follows."""
        self.wake(news=news)
        if self.task is not None:
            self.task.cancel()

    def begins(self) -> None:
        """Note that a pass looks at everything now: who wakes later wants another."""
        self.due = math.inf
        self.asked = self.news = False

    def next_due(self, now: float, due: float, gather: float) -> float:
        """Return when the next pass is to begin if by itself it is at `due`."""
        if self.news:
            self.failures = 0
            return now
        if not self.asked:
            return due
        return min(due, max(now, self.quiet) if self.failures else now + gather)


class Rounds:
    """Passes over all objects of a kind, each after its interval or when it is woken.

    one_pass(uid, place): one pass; None when there is nothing to be done for that object ever
    again. It may give `place` back before it waits for long. What wakes it gathers for `gather`
    seconds before a pass, but news from people is looked at at once: what several engines have to
    say of one thing is worth one pass. A pass that does not end well is repeated with growing
    delays, which begin anew when people have changed something.
    """

    def __init__(
        self,
        one_pass: Callable[[str, Turn], Awaitable[Outcome | None]],
        *,
        wakeups: Wakeups,
        settings: OperatorSettings,
        gather: float = 0.0,
        kind: str = "",
    ) -> None:
        self._one_pass = one_pass
        self._wakeups = wakeups
        self._settings = settings
        self._gather = gather
        self._waited = metrics.PASS_WAIT_SECONDS.labels(kind)
        self._running = metrics.PASSES_RUNNING.labels(kind)
        self._rounds: dict[str, Round] = {}
        self._heap: list[tuple[float, int, Round]] = []
        self._count = itertools.count()
        self._places = asyncio.Semaphore(_PLACES)
        self._sooner = asyncio.Event()
        self._clock: asyncio.Task[None] | None = None

    def add(self, uid: str, key: str) -> None:
        """Give an object its first pass at once, and others after it; no-op for a known one."""
        if uid not in self._rounds:
            self._rounds[uid] = found = Round(self, uid, key)
            self._wakeups.add(key, found)
            self._set_due(found, self._now())

    def cut(self, uid: str) -> None:
        """End the pass over the object that runs now; see Round."""
        found = self._rounds.get(uid)
        if found is not None:
            found.cut()

    def start(self) -> None:
        """Begin with passes; what was added before waits for this."""
        if self._clock is None:
            self._clock = asyncio.create_task(self._run(), name="rounds")

    async def close(self) -> None:
        """Cut off every pass and begin no more."""
        tasks = [each.task for each in self._rounds.values() if each.task is not None]
        if self._clock is not None:
            tasks.append(self._clock)
        self._rounds.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def woken(self, found: Round) -> None:
        """Bring the next pass forward, unless one is running: then that is done when it ends."""
        if found.task is None:
            due = found.next_due(self._now(), found.due, self._gather)
            if due < found.due:
                self._set_due(found, due)

    async def _run(self) -> None:
        while True:
            await self._places.acquire()
            found = await self._next()
            self._waited.observe(self._now() - found.due)
            self._running.inc()
            found.begins()
            place = Turn(self._places, taken=True)
            found.task = asyncio.create_task(self._pass(found, place), name=found.key)
            found.task.add_done_callback(partial(self._ended, found, place))

    async def _next(self) -> Round:
        """Wait for the object whose pass is due first, and return it."""
        while True:
            self._sooner.clear()
            while self._heap and self._heap[0][0] != self._heap[0][2].due:
                heapq.heappop(self._heap)  # it has another time by now
            due = self._heap[0][0] if self._heap else math.inf
            if due <= self._now():
                return heapq.heappop(self._heap)[2]
            with suppress(TimeoutError):
                async with asyncio.timeout(None if due == math.inf else due - self._now()):
                    await self._sooner.wait()

    async def _pass(self, found: Round, place: Turn) -> Outcome | None:
        long = asyncio.get_running_loop().call_later(_LONG_SECONDS, place.give_back)
        try:
            return await self._one_pass(found.uid, place)
        except Exception as error:
            # A fault of ours or the API server's: seen in the log and the metric, tried again.
            metrics.RECONCILE_ERRORS.labels(type(error).__name__).inc()
            _LOG.exception("%s: the pass failed", found.key)
            return Outcome(well=False, interval=0.0)
        finally:
            long.cancel()

    def _ended(self, found: Round, place: Turn, task: asyncio.Task[Outcome | None]) -> None:
        place.give_back()  # here, since a pass that is cut off before it begins has no `finally`
        found.task = None
        self._running.dec()
        if self._rounds.get(found.uid) is not found:
            return
        outcome = Outcome(well=True, interval=0.0) if task.cancelled() else task.result()
        if outcome is None:
            del self._rounds[found.uid]
            self._wakeups.remove(found.key, found)
            return
        now = self._now()
        if outcome.well:
            found.failures = 0
            interval = min(outcome.interval, self._resync_seconds())
            due = now + interval * random.uniform(0.9, 1.0)  # noqa: S311 - spreads passes
        else:
            found.failures += 1
            delay = self._settings.backoff(found.failures, random.random())  # noqa: S311 - jitter
            found.quiet, due = now + min(delay, _QUIET_SECONDS), now + delay
        self._set_due(found, found.next_due(now, due, self._gather))

    def _resync_seconds(self) -> float:
        return max(self._settings.resync_seconds, len(self._rounds) / _LOOKS_A_SECOND)

    def _set_due(self, found: Round, due: float) -> None:
        found.due = due
        heapq.heappush(self._heap, (due, next(self._count), found))
        self._sooner.set()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
