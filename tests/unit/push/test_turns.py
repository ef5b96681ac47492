"""Whose turn it is to push."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from lorafleet.errors import StagingBusy
from lorafleet.push import Overtaken
from lorafleet_operator.push.turns import Turns


class Pusher:
    """Pushes one adapter; cancelled, it takes its time to end, as one does whose file is written."""

    def __init__(self, turns: Turns, name: str, order: list[str]) -> None:
        self.turns, self.name, self.order = turns, name, order
        self.ending = asyncio.Event()
        self.task = asyncio.create_task(self.push())

    async def push(self) -> None:
        async with self.turns.alone("a/rl", self.name):
            self.order.append(f"{self.name} begins")
            try:
                await asyncio.Event().wait()
            finally:
                with suppress(asyncio.CancelledError):
                    await self.ending.wait()
                self.order.append(f"{self.name} ends")


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_who_comes_last_begins_when_all_before_have_ended() -> None:
    turns, order = Turns(), list[str]()
    first = Pusher(turns, "first", order)
    await settle()
    others = []
    for name in ("second", "third"):
        others.append(Pusher(turns, name, order))
        await settle()
    second, third = others
    assert order == ["first begins"]
    with pytest.raises(Overtaken, match="a/rl: third took its place"):
        await second.task
    assert not third.task.done()
    first.ending.set()
    with pytest.raises(Overtaken, match="a/rl: second took its place"):
        await first.task
    await settle()
    assert order == ["first begins", "first ends", "third begins"]
    third.ending.set()
    third.task.cancel()
    await asyncio.wait([third.task])
    assert third.task.cancelled(), "who is cut off by its client was overtaken by nobody"
    assert vars(turns)["_lines"] == {}


async def test_one_that_waits_and_goes_leaves_no_trace() -> None:
    turns, order = Turns(), list[str]()
    first = Pusher(turns, "first", order)
    await settle()
    second = Pusher(turns, "second", order)
    await settle()
    second.task.cancel()
    await asyncio.wait([second.task])
    first.ending.set()
    await asyncio.wait([first.task])
    assert order == ["first begins", "first ends"]
    assert vars(turns)["_lines"] == {}


async def test_a_side_has_two_places_and_others_have_theirs() -> None:
    turns, order, go = Turns(), list[str](), asyncio.Event()

    async def push(side: str, name: str) -> None:
        async with turns.call(side), turns.place(side):
            order.append(name)
            await go.wait()

    tasks = [asyncio.create_task(push("greedy", f"greedy-{n}")) for n in range(9)]
    await settle()
    tasks.append(asyncio.create_task(push("modest", "modest")))
    await settle()
    assert order == ["greedy-0", "greedy-1", "modest"]
    go.set()
    await asyncio.gather(*tasks)
    assert len(order) == 10
    places = vars(vars(turns)["_places"])
    assert not places["_held"]
    assert not places["_waiting"]


async def test_a_side_with_too_many_calls_is_told_so() -> None:
    turns = Turns()
    held: list[Any] = [turns.call("greedy") for _ in range(128)]
    for each in held:
        await each.__aenter__()
    with pytest.raises(StagingBusy, match="greedy has 128 calls going on"):
        await turns.call("greedy").__aenter__()
    await turns.call("modest").__aenter__()
    for each in held:
        await each.__aexit__(None, None, None)
    await turns.call("greedy").__aenter__()
