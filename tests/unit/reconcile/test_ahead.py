"""Transfers of pushes that still come in: who waits for which, and what ends them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from lorafleet_operator.ahead import Ahead, Content
from lorafleet_operator.wake import Wakeups

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

ONE, NEXT = Content("uid", "one", "team/pool"), Content("uid", "next", "team/pool")


class Work:
    """A transfer that goes on until it is told to end."""

    def __init__(self, *, whole: bool = True) -> None:
        self.whole = whole
        self.may_end, self.began = asyncio.Event(), asyncio.Event()
        self.cancelled = False

    async def __call__(self) -> None:
        self.began.set()
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise

    def begin(self, ahead: Ahead, content: Content) -> asyncio.Task[None]:
        return ahead.begin("team/rl", content, self, lambda: self.whole)


async def test_a_pass_waits_for_what_it_wants_itself_and_for_nothing_else() -> None:
    ahead, work = Ahead(Wakeups()), Work()
    work.begin(ahead, ONE)
    assert not await ahead.over(NEXT)
    assert not await ahead.over(Content("another", "one", "team/other"))
    waiting = asyncio.create_task(ahead.over(ONE))
    await work.began.wait()
    assert not waiting.done()
    work.may_end.set()
    assert await waiting
    assert not work.cancelled
    assert not await ahead.over(ONE), "nothing is kept of it"


async def test_a_pass_that_is_cut_off_ends_no_transfer_that_it_waits_for() -> None:
    ahead, work = Ahead(Wakeups()), Work()
    task = work.begin(ahead, ONE)
    await work.began.wait()
    waiting = asyncio.create_task(ahead.over(ONE))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    work.may_end.set()
    await task
    assert not work.cancelled


async def _pass(ahead: Ahead, _: Wakeups) -> None:
    assert await ahead.over(ONE)


async def _pass_of_another(ahead: Ahead, _: Wakeups) -> None:
    assert await ahead.over(ONE._replace(uid="another"))


async def _cut(_: Ahead, wakeups: Wakeups) -> None:
    wakeups.cut("team/rl")


async def _interrupt(_: Ahead, wakeups: Wakeups) -> None:
    wakeups.interrupt("team/rl")


async def _give_way(ahead: Ahead, _: Wakeups) -> None:
    assert not ahead.give_way("team/other")
    assert ahead.give_way("team/pool")


async def _close(ahead: Ahead, _: Wakeups) -> None:
    await ahead.close()


@pytest.mark.parametrize("end", [_pass, _pass_of_another, _cut, _interrupt, _give_way, _close])
async def test_what_is_still_coming_ends(
    end: Callable[[Ahead, Wakeups], Coroutine[None, None, None]],
) -> None:
    wakeups = Wakeups()
    ahead, work = Ahead(wakeups), Work(whole=False)
    task = work.begin(ahead, ONE)
    await work.began.wait()
    wakeups.wake("team/rl", news=True)
    await asyncio.sleep(0)
    assert not task.done(), "news alone end nothing"
    await end(ahead, wakeups)
    await asyncio.gather(task, return_exceptions=True)
    assert work.cancelled


async def test_those_of_one_adapter_follow_one_another_whatever_became_of_the_first() -> None:
    ahead = Ahead(Wakeups())
    first, second, other = Work(), Work(), Work()
    task = first.begin(ahead, ONE)
    second.begin(ahead, NEXT)
    other.begin(ahead, Content("another", "one", "team/other"))
    await first.began.wait()
    await other.began.wait()
    assert not second.began.is_set()
    task.cancel()
    await second.began.wait()
    await ahead.close()
