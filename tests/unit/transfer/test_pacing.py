"""Limits on the operator's sending, counted against a clock that only sleeping moves."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from lorafleet_operator.transfer.pacing import BURST_SECONDS, Paces, TokenBucket

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

CHUNK = 1000


def pace(paces: Paces, rates: dict[str, int | None]) -> Callable[[int], Awaitable[None]]:
    """Return what a transfer of pool p awaits, which something limits."""
    found = paces.of("p", rates)
    assert found is not None
    return found


@dataclass
class Clock:
    """A time that moves when somebody sleeps, to the end of the longest sleep."""

    now: float = 0.0
    slept: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        until = self.now + seconds
        await asyncio.sleep(0)
        self.now = max(self.now, until)

    def bucket(self, rate: float) -> TokenBucket:
        return TokenBucket(rate, clock=self, sleep=self.sleep)


async def test_what_is_sent_never_exceeds_the_rate_and_the_burst() -> None:
    clock = Clock()
    bucket = clock.bucket(10 * CHUNK)
    for sent in range(1, 101):
        await bucket.take(CHUNK)
        assert (sent - 1) * CHUNK <= 10 * CHUNK * (clock.now + BURST_SECONDS) + 1e-6
    assert clock.now == pytest.approx(99 / 10 - BURST_SECONDS)


async def test_an_idle_bucket_saves_up_no_more_than_its_burst() -> None:
    clock = Clock()
    bucket = clock.bucket(10 * CHUNK)
    await bucket.take(CHUNK)
    clock.now = 1000.0
    for _ in range(4):
        await bucket.take(CHUNK)
    assert len(clock.slept) == 1, "a quarter of a second is saved, two and a half chunks"


async def test_two_namespaces_share_the_pools_rate_and_each_keeps_its_own() -> None:
    clock = Clock()
    paces = Paces(clock.bucket)
    sent = {"noisy": 0, "quiet": 0}

    async def send(namespace: str, chunks: int) -> None:
        for _ in range(chunks):
            await pace(paces, {namespace: 4 * CHUNK, "pool": 10 * CHUNK})(CHUNK)
            sent[namespace] += 1

    await send("noisy", 41)
    assert clock.now == pytest.approx(40 / 4 - BURST_SECONDS), "its own limit holds the noisy one"
    before = clock.now
    await send("quiet", 2)
    assert clock.now - before <= 1 / 4, "which costs the other nothing"
    assert sent == {"noisy": 41, "quiet": 2}


async def test_without_limits_nothing_waits_and_a_changed_rate_counts_at_once() -> None:
    clock = Clock()
    paces = Paces(clock.bucket)
    assert paces.of("p", {"n": None, "pool": None}) is None
    for _ in range(11):
        await pace(paces, {"n": None, "pool": CHUNK})(CHUNK)
    at = clock.now
    for _ in range(11):
        await pace(paces, {"n": None, "pool": 1000 * CHUNK})(CHUNK)
    assert clock.now - at < 2


async def test_the_namespaces_of_a_tenant_share_its_rate_and_cost_others_none_of_the_pools() -> (
    None
):
    clock = Clock()
    paces = Paces(clock.bucket)
    sent = {"a1": 0, "a2": 0, "b": 0}

    async def send(namespace: str, tenant: str, rate: int | None, chunks: int) -> None:
        rates = {namespace: None, tenant: rate, "pool": 100 * CHUNK}
        for _ in range(chunks):
            await pace(paces, rates)(CHUNK)
            sent[namespace] += 1

    noisy = [asyncio.create_task(send(each, "a", 4 * CHUNK, 20)) for each in ("a1", "a2")]
    await send("b", "b", None, 20)
    assert clock.now < 1, "b waits for the pool's rate alone"
    assert sent["a1"] + sent["a2"] < 20
    await asyncio.gather(*noisy)
    assert clock.now == pytest.approx(39 / 4 - BURST_SECONDS, abs=0.5), "one rate for both"
