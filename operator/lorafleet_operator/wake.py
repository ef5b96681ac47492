"""Who has to look again: a flag for each loop, set by events about its object, cleared by the loop."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Flag:
    """What wakes one loop."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._news = asyncio.Event()

    def set(self, *, news: bool = False) -> None:
        """Make the loop run a pass soon; at once if people have changed something (`news`)."""
        self._event.set()
        if news:
            self._news.set()

    async def wait(self, seconds: float) -> bool:
        """Return at the next wake-up or after `seconds`: whether there is news."""
        await _set_within(self._event, seconds)
        self._event.clear()
        return self._take_news()

    async def wait_for_news(self, seconds: float) -> bool:
        """Return at the next news or after `seconds`: whether there is any.

        Keeps other wake-ups, unless there is news: the pass about that sees what they are about.
        """
        await _set_within(self._news, seconds)
        found = self._take_news()
        if found:
            self._event.clear()
        return found

    async def gather(self, seconds: float) -> None:
        """Let wake-ups gather for `seconds`, at most until there is news: one pass is for all."""
        await _set_within(self._news, seconds)
        self._event.clear()
        self._news.clear()

    def _take_news(self) -> bool:
        found = self._news.is_set()
        self._news.clear()
        return found


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return


class Seen:
    """What people last said of each object: all that a pass depends on but the status."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[Any, ...]] = {}

    def changed(self, body: Mapping[str, Any]) -> bool:
        """Return whether `body` says another thing than the last one of its object did."""
        metadata = body["metadata"]
        annotations = dict(metadata.get("annotations") or {})
        said = (metadata.get("generation"), metadata.get("deletionTimestamp"), annotations)
        before = self._last.get(metadata["uid"])
        self._last[metadata["uid"]] = said
        return said != before

    def forget(self, uid: str) -> None:
        """Drop what is remembered of an object that is gone."""
        self._last.pop(uid, None)


class Wakeups:
    """Flags by key. A wake-up during a pass is kept for the next one.

    A key may have two loops for a while: an object whose finalizer a person took away, and its
    namesake.
    """

    def __init__(self) -> None:
        self._flags: defaultdict[str, set[Flag]] = defaultdict(set)
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def wake(self, key: str, *, news: bool = False) -> None:
        """Make the loops of `key` run a pass soon; no-op for keys without a loop.

        `news`: what people have changed is looked at at once, whatever failed before it.
        """
        for flag in self._flags.get(key, ()):
            flag.set(news=news)

    def later(self, key: str, seconds: float) -> None:
        """Wake the loops of `key` in so many seconds; a later call takes the place of an earlier."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        self._timers[key] = asyncio.get_running_loop().call_later(seconds, self._ring, key)

    def _ring(self, key: str) -> None:
        self._timers.pop(key, None)
        self.wake(key)

    @contextmanager
    def loop(self, key: str) -> Iterator[Flag]:
        """Give a loop over `key` its flag for as long as the block runs."""
        flag = Flag()
        self._flags[key].add(flag)
        try:
            yield flag
        finally:
            self._flags[key].discard(flag)
            if not self._flags[key]:
                del self._flags[key]
