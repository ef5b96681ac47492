"""Who counts as dead while a transfer waits: whoever gives no answer, not whoever is slow."""

from __future__ import annotations

import asyncio
import time

import pytest
from lorafleet.errors import EngineUnreachable, TransferInterrupted
from lorafleet.pulse import Pulse


async def never() -> None:
    await asyncio.Event().wait()


async def test_a_process_that_does_not_answer_ends_every_wait_for_it() -> None:
    pulse = Pulse("sidecar at x", never, 0.5)

    async def wait() -> None:
        async with pulse.within(3600, "take a chunk"):
            await never()

    ends = await asyncio.gather(wait(), wait(), return_exceptions=True)
    ends += await asyncio.gather(wait(), return_exceptions=True)  # one that begins later
    assert [str(end) for end in ends] == ["sidecar at x gave no sign of life for 0.5 s"] * 3
    assert {type(end) for end in ends} == {EngineUnreachable}
    await pulse.stop()


async def test_a_process_that_answers_may_be_slow() -> None:
    answers = 0
    enough = asyncio.Event()

    async def ask() -> None:
        nonlocal answers
        answers += 1
        if answers == 3:
            enough.set()

    pulse = Pulse("sidecar at x", ask, 0.5, TransferInterrupted)
    async with pulse.within(3600, "take a chunk"):
        await enough.wait()
    with pytest.raises(TransferInterrupted, match=r"did not commit within 0\.01 s"):
        async with pulse.within(0.01, "commit"):
            await never()
    await pulse.stop()


async def test_what_the_asker_sleeps_is_not_counted_against_the_other_side() -> None:
    answered = asyncio.Event()

    async def ask() -> None:
        asyncio.get_running_loop().call_later(0, time.sleep, 0.6)  # longer than it would wait
        await asyncio.sleep(0.05)
        answered.set()

    pulse = Pulse("sidecar at x", ask, 0.5)
    async with pulse.within(60, "answer"):
        await answered.wait()
    await pulse.stop()
