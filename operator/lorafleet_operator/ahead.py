"""Pushes that engines are sent while they still come in: one transfer for each, which a pass joins.

It spares time and decides nothing. Who wants the same content waits for the end of such a transfer
and goes on from what the engines say then; whatever became of it, they keep what has arrived, until
that has to give way. What is still coming ends when others need the room that is kept for it.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lorafleet_operator.wake import Wakeups

_LOG: Final = logging.getLogger(__name__)


class Content(NamedTuple):
    """What is sent."""

    uid: str
    """Of the adapter."""
    fingerprint: str
    pool: str
    """`<namespace>/<name>`."""


class _Transfer:
    """One of them; it ends when passes over its adapter are cut off."""

    def __init__(
        self, content: Content, task: asyncio.Task[None], whole: Callable[[], bool]
    ) -> None:
        self.content = content
        self.task = task
        self.whole = whole

    def wake(self, *, news: bool = False) -> None:
        """Go on: nothing was decided here."""

    def cut(self, *, news: bool = True) -> None:
        """End."""
        self.task.cancel()


class Ahead:
    """The transfers under way; those of one adapter follow one another."""

    def __init__(self, wakeups: Wakeups) -> None:
        self._wakeups = wakeups
        self._going: list[_Transfer] = []

    def begin(
        self,
        key: str,
        content: Content,
        work: Callable[[], Awaitable[None]],
        whole: Callable[[], bool],
    ) -> asyncio.Task[None]:
        """Begin with `work` for the adapter `<namespace>/<name>`.

        whole: whether all of the content is here, so that it is worth waiting for.
        """
        before = [each.task for each in self._going if each.content.uid == content.uid]
        going = _Transfer(content, asyncio.create_task(_after(before, work)), whole)
        self._going.append(going)
        self._wakeups.add(key, going)
        going.task.add_done_callback(partial(self._ended, key, going))
        return going.task

    async def over(self, content: Content) -> bool:
        """Return when nobody sends the content any more, and whether anybody did.

        Sidecars take the same content of one sender at a time, of whichever adapter it is. What is
        still coming is not waited for: that transfer ends.
        """
        wanted = content._replace(uid="")
        found = [each for each in self._going if each.content._replace(uid="") == wanted]
        for each in found:
            if not each.whole():
                each.task.cancel()
        if found:
            await asyncio.wait([each.task for each in found])
        return bool(found)

    def give_way(self, pool: str) -> bool:
        """End what is still coming for a pool, whose room others need; return whether there was any.

        The sidecars hear of it in a moment, and count the room as free.
        """
        ending = [each for each in self._going if each.content.pool == pool and not each.whole()]
        for each in ending:
            each.task.cancel()
        return bool(ending)

    async def close(self) -> None:
        """End all."""
        tasks = [each.task for each in self._going]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, key: str, going: _Transfer, task: asyncio.Task[None]) -> None:
        self._going.remove(going)
        self._wakeups.remove(key, going)
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("%s: sending a push that comes in failed", key, exc_info=error)


async def _after(before: list[asyncio.Task[None]], work: Callable[[], Awaitable[None]]) -> None:
    if before:
        await asyncio.wait(before)
    await work()
