"""Trying again: what broke goes on where it broke, what asks for time gets it within bounds."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, TypeVar

from lorafleet.errors import SourceUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from lorafleet_operator.sources.bounds import SourceSettings

T = TypeVar("T")

_PROGRESS_BYTES = 64 << 10
_MAX_BACKOFF_S = 8.0


class AskedToWait(SourceUnavailable):
    """Raised when a busy server says for how long it wants to be left alone."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(f"{message} (asks to wait {seconds:.0f} s)")
        self.seconds = seconds


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a Retry-After header asks for, as a number or a date; else None."""
    text = headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdecimal() and len(text) < 10:
        return float(text)
    try:
        until = parsedate_to_datetime(text)
    except ValueError:
        return None
    until = until if until.tzinfo else until.replace(tzinfo=UTC)
    return max(0.0, (until - datetime.now(UTC)).total_seconds())


async def retried(
    settings: SourceSettings,
    work: Callable[[], Awaitable[T]],
    progress: Callable[[], int] = lambda: 0,
) -> T:
    """Return what `work` returns; again after `SourceUnavailable`, with growing waits.

    Tries that brought at least 64 KiB, as `progress` counts them, are not held against it. A server
    that asks for a longer wait gets it, up to `max_wait_s`; above that it is left to a later pass.
    """
    failures, before = 0, progress()
    while True:
        try:
            return await work()
        except SourceUnavailable as error:
            asked = error.seconds if isinstance(error, AskedToWait) else 0.0
            brought, before = progress() - before, progress()
            failures = 0 if brought >= _PROGRESS_BYTES else failures + 1
            if failures >= settings.attempts or asked > settings.max_wait_s:
                raise
        wait = min(_MAX_BACKOFF_S, settings.backoff_s * 2.0**failures)
        wait *= random.uniform(0.5, 1.0)  # noqa: S311 - jitter is no secret
        await asyncio.sleep(max(wait, asked))
