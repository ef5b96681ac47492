"""Requests for names that this engine lacks wait here until the sidecar has brought the adapter.

In the event loop that serves all requests: one that waits is a coroutine, and disturbs no other.
The sidecar asks which names are wanted (`wanted` answers when that changes) and either publishes
the name or refuses it. All requests for one name wait for one answer. Whatever happens, a request
is answered by its deadline; one whose client leaves leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import os
import time
from bisect import bisect_left
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

DEADLINE_VARIABLE = "LORAFLEET_FIRST_REQUEST_SECONDS"
DEADLINE_SECONDS = 30.0
MOST_NAMES = 256  # that can be waited for at a time
_MOST_LETTERS = 253
_POLL_SECONDS = 20.0  # how long an unchanged answer is held back
_ALONE_SECONDS = 5.0  # without a question from the sidecar nobody will bring anything
BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # seconds
NOT_FOUND, UNAVAILABLE = 404, 503


@dataclass(frozen=True)
class Absent:
    """Why there is no adapter for a request: an HTTP status and one line."""

    status: int
    line: str


@dataclass
class _Awaited:
    answer: asyncio.Future[Absent | None]
    requests: int = 0


class FirstRequests:
    """The names that requests wait for."""

    def __init__(self, deadline_seconds: float) -> None:
        self._deadline_seconds = deadline_seconds
        self._awaited: dict[str, _Awaited] = {}
        self._sequence = time.time_ns() // 1_000_000  # another one after a restart
        self._changed = asyncio.Event()
        self._listening = 0
        self._heard_at = float("-inf")
        self._outcomes: Counter[str] = Counter()
        self._waits = [0] * (len(BUCKETS) + 1)
        self._seconds = 0.0

    async def bring(self, name: str) -> Absent | None:
        """Wait until `name` is served, None then, or return why it is not."""
        if not _could_be_served(name) or not self._heard():
            return Absent(NOT_FOUND, f"The model `{name[:_MOST_LETTERS]}` does not exist.")
        awaited = self._awaited.get(name)
        if awaited is None:
            if len(self._awaited) >= MOST_NAMES:
                line = f"{MOST_NAMES} adapters are being brought for other requests; try again."
                return Absent(UNAVAILABLE, line)
            future = asyncio.get_running_loop().create_future()
            awaited = self._awaited[name] = _Awaited(future)
            self._tell()
        awaited.requests += 1
        started, outcome = time.monotonic(), "gone"
        try:
            async with asyncio.timeout(self._deadline_seconds):
                absent = await asyncio.shield(awaited.answer)
            outcome = "refused" if absent else "served"
        except TimeoutError:
            outcome = "expired"
            line = (
                f"The model `{name}` was not loaded within {self._deadline_seconds:g} s; try again."
            )
            absent = Absent(UNAVAILABLE, line)
        finally:
            self._count(outcome, time.monotonic() - started)
            awaited.requests -= 1
            if not awaited.requests and self._awaited.get(name) is awaited:
                del self._awaited[name]
                self._tell()
        return absent

    def answer(self, name: str, absent: Absent | None) -> None:
        """Let the requests for `name` go on, or fail."""
        awaited = self._awaited.pop(name, None)
        if awaited is not None:
            if not awaited.answer.done():
                awaited.answer.set_result(absent)
            self._tell()

    async def wanted(self, seen: int) -> dict[str, Any]:
        """Return the names that are waited for, the longest first, when `seen` is out of date."""
        with self._listened():
            if seen == self._sequence:
                try:
                    async with asyncio.timeout(_POLL_SECONDS):
                        await self._changed.wait()
                except TimeoutError:
                    pass
            return {"sequence": self._sequence, "names": list(self._awaited)}

    def figures(self) -> dict[str, Any]:
        """Return the requests that have waited, by what came of it, and how long those served did.

        `waits[i]` counts the waits of up to `BUCKETS[i]` seconds and not of the bucket before,
        the last one those above all.
        """
        return {
            "outcomes": dict(self._outcomes),
            "buckets": list(BUCKETS),
            "waits": list(self._waits),
            "seconds": self._seconds,
        }

    def _count(self, outcome: str, seconds: float) -> None:
        self._outcomes[outcome] += 1
        if outcome == "served":
            self._waits[bisect_left(BUCKETS, seconds)] += 1
            self._seconds += seconds

    def _tell(self) -> None:
        self._sequence += 1
        self._changed.set()
        self._changed = asyncio.Event()

    def _heard(self) -> bool:
        """Whether a sidecar listens, or did a moment ago."""
        return self._listening > 0 or time.monotonic() - self._heard_at < _ALONE_SECONDS

    @contextmanager
    def _listened(self) -> Iterator[None]:
        self._listening += 1
        try:
            yield
        finally:
            self._listening -= 1
            self._heard_at = time.monotonic()


def _could_be_served(name: str) -> bool:
    """Whether the sidecar would let any adapter have this name."""
    usable = 1 <= len(name) <= _MOST_LETTERS and name.isprintable()
    return usable and ".." not in name and not name.startswith("/")


def deadline_seconds() -> float:
    """Return how long a request waits for its adapter, from the environment. Raises ValueError."""
    text = os.environ.get(DEADLINE_VARIABLE, "")
    seconds = float(text) if text else DEADLINE_SECONDS
    if not 0 < seconds <= 3600:
        raise ValueError(f"{DEADLINE_VARIABLE}={text!r}: expected seconds above 0, at most 3600")
    return seconds
