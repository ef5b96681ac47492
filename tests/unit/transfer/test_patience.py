"""A slow source keeps its place while nobody waits for it, and leaves it when somebody does."""

from __future__ import annotations

import asyncio

import pytest
from lorafleet.errors import SourceUnavailable
from lorafleet_operator.transfer.patience import Patience

FOREVER = 1e9
"""A patience that no test comes to the end of, in seconds."""


async def read(seconds: float = 0.0) -> str:
    await asyncio.sleep(seconds)
    return "read"


async def read_on(patience: Patience) -> None:
    """Read a byte at a time, each as slow as the last."""
    while True:
        await patience.wait(asyncio.ensure_future(read(0.05)), 1)


def hanging() -> asyncio.Future[str]:
    return asyncio.get_running_loop().create_future()


@pytest.mark.parametrize(("rate", "amount"), [(0.0, 0), (1.0, int(FOREVER))])
async def test_any_pace_will_do_without_a_rate_and_what_came_pays_for_the_time(
    rate: float, amount: int
) -> None:
    patience = Patience("a/b", rate, 1.0, lambda: True)
    for _ in range(30):
        assert await patience.wait(asyncio.ensure_future(read(0.05)), amount) == "read"


async def test_what_came_too_slowly_leaves_the_place_to_others() -> None:
    patience = Patience("a/b", 1000.0, 0.5, lambda: True)
    line = r"adapter a/b: the source gave \d+ bytes in \d+ s, .*: expected 1000 bytes a second; its turn"
    with pytest.raises(SourceUnavailable, match=line):
        await read_on(patience)


async def test_what_was_saved_up_is_worth_no_more_than_the_patience() -> None:
    patience = Patience("a/b", 1.0, 0.2, lambda: True)
    await patience.wait(asyncio.ensure_future(read()), int(FOREVER))
    with pytest.raises(SourceUnavailable, match=f"gave {int(FOREVER)} bytes"):
        await patience.wait(hanging(), 1)


async def test_nobody_is_left_while_nobody_waits() -> None:
    waiting = False
    patience = Patience("a/b", 1.0, 0.01, lambda: waiting)
    reading = hanging()
    task = asyncio.create_task(patience.wait(reading, 1))
    done, _ = await asyncio.wait({task}, timeout=0.3)
    assert not done
    waiting = True
    with pytest.raises(SourceUnavailable):
        await task
    assert not reading.done(), "the read is its reader's to end"
