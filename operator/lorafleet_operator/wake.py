"""Who has to look again: wake-ups by name, and what counts as news from people."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping


class Wakeable(Protocol):
    """What a wake-up makes look again."""

    def wake(self, *, news: bool = False) -> None:
        """Look soon; at once if people have changed something (`news`)."""

    def cut(self, *, news: bool = True) -> None:
        """Leave off what is done now, and look at once; without `news` as soon as a wake-up would."""


class Seen:
    """What people last said of each object: all that a pass depends on but the status."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._ours: dict[str, int] = {}  # 1 for the finalizer, 2 for a status

    def changed(self, body: Mapping[str, Any]) -> bool:
        """Return whether `body` says another thing than the last one of its object did."""
        metadata = body["metadata"]
        annotations = frozenset((metadata.get("annotations") or {}).items())
        said = hash((metadata.get("generation"), metadata.get("deletionTimestamp"), annotations))
        before = self._last.get(metadata["uid"])
        self._last[metadata["uid"]] = said
        return said != before

    def robbed(self, body: Mapping[str, Any], *, held: bool) -> bool:
        """Return whether somebody has taken our finalizer or the status away since the last body.

        held: whether the finalizer is there.
        """
        metadata = body["metadata"]
        ours, before = held + 2 * bool(body.get("status")), self._ours.get(metadata["uid"], 0)
        self._ours[metadata["uid"]] = ours
        return bool(before & ~ours) and "deletionTimestamp" not in metadata

    def forget(self, uid: str) -> None:
        """Drop what is remembered of an object that is gone."""
        self._last.pop(uid, None)
        self._ours.pop(uid, None)


class Wakeups:
    """Who is woken by which key.

    A key may have two for a while: an object that has to be unloaded still, and its namesake.
    """

    def __init__(self) -> None:
        self._by_key: dict[str, tuple[Wakeable, ...]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def wake(self, key: str, *, news: bool = False) -> None:
        """Make those of `key` look soon; no-op for keys that nobody has.

        `news`: what people have changed is looked at at once, whatever failed before it.
        """
        for each in self._by_key.get(key, ()):
            each.wake(news=news)

    def cut(self, key: str) -> None:
        """Make those of `key` leave off what they do, and look at once."""
        for each in self._by_key.get(key, ()):
            each.cut()

    def interrupt(self, key: str) -> None:
        """Make those of `key` leave off what they do, and look soon."""
        for each in self._by_key.get(key, ()):
            each.cut(news=False)

    def later(self, key: str, seconds: float) -> None:
        """Wake those of `key` in so many seconds; a later call takes the place of an earlier."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        self._timers[key] = asyncio.get_running_loop().call_later(seconds, self._ring, key)

    def _ring(self, key: str) -> None:
        self._timers.pop(key, None)
        self.wake(key)

    def add(self, key: str, sleeper: Wakeable) -> None:
        """Wake it by this key from now on."""
        self._by_key[key] = (*self._by_key.get(key, ()), sleeper)

    def remove(self, key: str, sleeper: Wakeable) -> None:
        """Wake it no more."""
        left = tuple(each for each in self._by_key.get(key, ()) if each is not sleeper)
        if left:
            self._by_key[key] = left
        else:
            self._by_key.pop(key, None)
