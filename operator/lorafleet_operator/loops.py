"""The loop around passes: when the next one runs, and how it ends.

A loop never ends by itself and never lets an error out: the framework would not start it again.
It ends when `stopped` is set, and cuts off a running pass for that; the next pass, here or after
a restart, goes on from what the engines say.
"""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from lorafleet_operator import metrics

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lorafleet_operator.settings import OperatorSettings
    from lorafleet_operator.wake import Wakeups

_LOG: Final = logging.getLogger(__name__)
_RETRY_SECONDS: Final = 2.0
"""Pause between tries of a deletion that failed for a reason of ours."""
_QUIET_SECONDS: Final = 5.0
"""Longest time after a failure during which wake-ups wait, but for news from people: a failure that
changes an inventory would wake its own loop."""


class Stopper(Protocol):
    """The framework's stop flag."""

    def __bool__(self) -> bool:
        """Whether the flag is set."""

    def wait(self, timeout: float | None = None) -> Any:
        """Return an awaitable that ends when the flag is set."""


@dataclass(frozen=True)
class StoppedOr:
    """A stop flag that counts as set also when `gone()`, which is asked before each pass."""

    stopped: Stopper
    gone: Callable[[], bool]

    def __bool__(self) -> bool:
        return bool(self.stopped) or self.gone()

    def wait(self, timeout: float | None = None) -> Any:
        """Return an awaitable that ends when the flag itself is set."""
        return self.stopped.wait(timeout)


async def keep(
    key: str,
    one_pass: Callable[[], Awaitable[bool]],
    *,
    wakeups: Wakeups,
    settings: OperatorSettings,
    stopped: Stopper,
    interval: Callable[[], float],
    gather: float = 0.0,
) -> None:
    """Run `one_pass` at each wake-up of `key` and after each `interval()` seconds, until stopped.

    Wake-ups gather for `gather` seconds before a pass, but news from people is looked at at once:
    what several engines have to say of one thing is worth one pass. A pass that returns False or raises is repeated with growing delays, which begin anew
    when people have changed something.
    """
    stopping = asyncio.create_task(_set(stopped))
    failures = 0
    with wakeups.loop(key) as flag:
        # A loop that waits is one task, this one: there is a loop for each of many adapters.
        stopping.add_done_callback(lambda _: flag.set(news=True))
        try:
            while not stopped:
                done = await _unless(stopping, guarded(key, one_pass))
                if done is None:
                    break
                failures = 0 if done else failures + 1
                if failures:
                    delay = settings.backoff(failures, random.random())  # noqa: S311 - jitter
                    quiet = min(delay, _QUIET_SECONDS)
                    news = await flag.wait_for_news(quiet) or await flag.wait(delay - quiet)
                    failures = 0 if news else failures
                    continue
                jitter = random.uniform(0.9, 1.0)  # noqa: S311 - spreads passes after a start
                if not await flag.wait(interval() * jitter):
                    await flag.gather(gather)
        finally:
            stopping.cancel()


async def insist(key: str, work: Callable[[], Awaitable[bool]]) -> None:
    """Repeat `work` until it succeeds: an error must not end a deletion that has work left."""
    done = await guarded(key, work)
    while not done:
        await asyncio.sleep(_RETRY_SECONDS)
        done = await guarded(key, work)


async def guarded(key: str, one_pass: Callable[[], Awaitable[bool]]) -> bool:
    """Return what the pass returns, False after an unexpected error, which is logged."""
    try:
        return await one_pass()
    except Exception as error:
        # A fault of ours or the API server's: seen in the log and the metric, tried again.
        metrics.RECONCILE_ERRORS.labels(type(error).__name__).inc()
        _LOG.exception("%s: the pass failed", key)
        return False


async def _unless(stopping: asyncio.Task[None], work: Awaitable[bool]) -> bool | None:
    """Return the result of `work`, or None after cutting it off because of the stop flag."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        return None
    finally:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _set(stopped: Stopper) -> None:
    await stopped.wait()
