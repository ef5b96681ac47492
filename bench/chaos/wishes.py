"""What was asked for, and so which answers are right at which time."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass, field


@dataclass
class Wish:
    """One adapter: the contents it was given, each with the time, and how far it is settled."""

    contents: list[tuple[float, str]]
    settled: int = -1
    """Index of the newest content that was seen Ready; -1 before the first."""
    settled_at: float = 0.0
    touched_at: float = 0.0
    """When it was last changed or, at the latest, last seen not to be settled."""
    deleted: bool = False
    generation: float = math.inf
    """Of the manifest that asks for the newest content; a status of an older one says nothing of it."""


@dataclass
class Wishes:
    """All adapters by name; used by the threads that ask and the one that changes."""

    answers: dict[str, str]
    """The right answer for each content."""
    now: dict[str, Wish] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def want(self, name: str, content: str) -> None:
        """Note that `name` is about to be given `content`."""
        with self._lock:
            moment = time.monotonic()
            wish = self.now.setdefault(name, Wish([]))
            wish.contents.append((moment, content))
            wish.touched_at = moment
            wish.deleted, wish.generation = False, math.inf

    def written(self, name: str, generation: int) -> None:
        """Note that the manifest of that generation asks for the newest content of `name`."""
        with self._lock:
            self.now[name].generation = generation

    def unwant(self, name: str) -> None:
        """Note that `name` is about to be deleted."""
        with self._lock:
            self.now[name].deleted = True
            self.now[name].touched_at = time.monotonic()

    def forget(self, name: str) -> None:
        """Note that `name` is gone."""
        with self._lock:
            del self.now[name]

    def ready(self, name: str, content: str, generation: int) -> None:
        """Note that a status of `generation` says that `content` of `name` is Ready everywhere."""
        with self._lock:
            wish = self.now.get(name)
            if wish is None or generation < wish.generation or wish.contents[-1][1] != content:
                return
            if wish.settled < len(wish.contents) - 1:
                wish.settled, wish.settled_at = len(wish.contents) - 1, time.monotonic()

    def untouched(self, name: str, since: float) -> bool:
        """Whether `name` has been settled, and let alone, from `since` until now."""
        with self._lock:
            wish = self.now.get(name)
            return (
                wish is not None
                and not wish.deleted
                and wish.settled == len(wish.contents) - 1
                and max(wish.settled_at, wish.touched_at) < since
            )

    def right(self, name: str, began: float, ended: float) -> set[str]:
        """Return the answers that a request of that time may get."""
        with self._lock:
            wish = self.now.get(name)
            if wish is None:
                return set()
            first = wish.settled if wish.settled_at < began else 0
            known = wish.contents[max(first, 0) :]
            return {self.answers[content] for at, content in known if at < ended}
