"""How long is waited between two tries, and what a server may ask for."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from lorafleet.errors import SourceUnavailable
from lorafleet_operator.sources.bounds import SourceSettings
from lorafleet_operator.sources.retries import AskedToWait, retried, retry_after

SETTINGS = SourceSettings(attempts=4, backoff_s=0.5, max_wait_s=30.0)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Nobody sleeps in these tests; how long they would is kept."""
    kept: list[float] = []

    async def sleep(seconds: float) -> None:
        kept.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return kept


async def tried(*errors: Exception) -> str:
    left = list(errors)

    async def work() -> str:
        if left:
            raise left.pop(0)
        return "done"

    return await retried(SETTINGS, work)


async def test_waits_grow(waits: list[float]) -> None:
    assert await tried(*[SourceUnavailable("busy")] * 3) == "done"
    bounds = [(0.5, 1.0), (1.0, 2.0), (2.0, 4.0)]
    assert all(low <= wait <= high for wait, (low, high) in zip(waits, bounds, strict=True))


async def test_a_server_that_asks_for_a_wait_gets_it(waits: list[float]) -> None:
    assert await tried(AskedToWait("busy", 20), AskedToWait("busy", 0)) == "done"
    assert waits[0] == 20
    assert 1.0 <= waits[1] <= 2.0, "never less than our own"


async def test_a_long_wait_is_left_to_a_later_pass(waits: list[float]) -> None:
    with pytest.raises(SourceUnavailable, match=r"^busy \(asks to wait 31 s\)$"):
        await tried(AskedToWait("busy", 31))
    assert waits == []


async def test_tries_end(waits: list[float]) -> None:
    with pytest.raises(SourceUnavailable):
        await tried(*[SourceUnavailable("busy")] * 4)
    assert len(waits) == 3


def test_a_wait_is_a_number_or_a_date() -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    assert 80 <= (retry_after({"Retry-After": later}) or 0) <= 90
    assert retry_after({"Retry-After": "7"}) == 7
    assert retry_after({"Retry-After": "Sun, 29 Nov 2020 10:00:00 GMT"}) == 0
    for text in ("", "soon", "-1", "1.5", "9" * 40, "٣"):
        assert retry_after({"Retry-After": text}) is None
    assert retry_after({}) is None
