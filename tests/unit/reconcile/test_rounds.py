"""When passes run: intervals, wake-ups, failures, and how an object's rounds end."""

from __future__ import annotations

import asyncio
import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from lorafleet_operator import rounds
from lorafleet_operator.rounds import Outcome, Rounds
from lorafleet_operator.settings import OperatorSettings
from lorafleet_operator.wake import Seen, Wakeups

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from lorafleet_operator.fair import Turn

FAST = OperatorSettings(backoff_seconds=0.001, backoff_limit_seconds=0.002)
SLOW = OperatorSettings(backoff_seconds=3600.0, backoff_limit_seconds=3600.0)
KEY = "ns/a"


class Passes:
    """Counts passes and plays their results: an error, not well, well, or None for the last."""

    def __init__(self, *results: bool | Exception | None, interval: float = 0.001) -> None:
        self.results = list(results)
        self.interval = interval
        self.count = 0
        self.ended = asyncio.Event()
        self.wakeups = Wakeups()

    async def __call__(self, uid: str, place: Turn) -> Outcome | None:
        self.count += 1
        result = self.results.pop(0)
        if not self.results:
            self.ended.set()
        if isinstance(result, Exception):
            raise result
        return None if result is None else Outcome(result, self.interval)


@asynccontextmanager
async def running(
    passes: Any, settings: OperatorSettings = FAST, gather: float = 0.0
) -> AsyncIterator[Rounds]:
    made = Rounds(passes, wakeups=passes.wakeups, settings=settings, gather=gather)
    made.start()
    try:
        async with asyncio.timeout(60):
            yield made
    finally:
        await made.close()


async def over(made: Rounds, passes: Passes, count: int) -> None:
    """Add the object, and wait for the end of its pass of this number."""
    made.add("u", KEY)
    while passes.count < count or made._rounds["u"].task:
        await asyncio.sleep(0)


async def test_an_error_never_ends_an_objects_rounds() -> None:
    passes = Passes(RuntimeError("boom"), False, ValueError("again"), True, None)
    async with running(passes) as made:
        made.add("u", KEY)
        await passes.ended.wait()
    assert passes.count == 5


async def test_after_its_last_pass_an_object_is_forgotten_and_its_namesake_begins_anew() -> None:
    passes = Passes(None, True, interval=3600.0)
    async with running(passes) as made:
        made.add("u", KEY)
        while made._rounds:
            await asyncio.sleep(0)
        assert passes.wakeups._by_key == {}
        made.add("v", KEY)
        await passes.ended.wait()
    assert passes.count == 2


async def test_no_pass_begins_before_the_start() -> None:
    passes = Passes(True, interval=3600.0)
    made = Rounds(passes, wakeups=passes.wakeups, settings=FAST)
    made.add("u", KEY)
    for _ in range(5):
        await asyncio.sleep(0)
    assert passes.count == 0
    made.start()
    await passes.ended.wait()
    await made.close()


async def test_a_wake_up_during_a_pass_is_kept_for_the_next() -> None:
    class Waking(Passes):
        async def __call__(self, uid: str, place: Turn) -> Outcome | None:
            self.wakeups.wake(KEY)
            return await super().__call__(uid, place)

    passes = Waking(True, True, True, interval=3600.0)
    async with running(passes) as made:
        made.add("u", KEY)
        await passes.ended.wait()


async def test_wake_ups_gather_for_one_pass_but_news_is_looked_at_at_once() -> None:
    passes = Passes(True, True, interval=3600.0)
    async with running(passes, gather=3600.0) as made:
        await over(made, passes, 1)
        passes.wakeups.wake(KEY)
        for _ in range(5):
            await asyncio.sleep(0)
        assert passes.count == 1
        passes.wakeups.wake(KEY, news=True)
        await passes.ended.wait()
    passes = Passes(True, True, interval=3600.0)
    async with running(passes, gather=0.01) as made:
        await over(made, passes, 1)
        passes.wakeups.wake(KEY)
        passes.wakeups.wake(KEY)
        await over(made, passes, 2)
        assert made._rounds["u"].due > asyncio.get_running_loop().time() + 30


async def test_looks_without_a_reason_are_the_rarer_the_more_objects_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passes = Passes(True, True, True, interval=math.inf)
    async with running(passes, OperatorSettings(resync_seconds=0.001)) as made:
        made.add("u", KEY)
        await passes.ended.wait()
    monkeypatch.setattr(rounds, "_LOOKS_A_SECOND", 2 / 3600)
    passes = Passes(True, True, interval=math.inf)
    async with running(passes, OperatorSettings(resync_seconds=0.001)) as made:
        made.add("v", "ns/b")
        await over(made, passes, 2)
        soon = asyncio.get_running_loop().time() + 0.9 * 1800
        assert all(each.due > soon for each in made._rounds.values()), "each has its turn an hour"
    passes = Passes(True, True, True, interval=0.001)
    async with running(passes, OperatorSettings(resync_seconds=3600.0)) as made:
        made.add("u", KEY)
        await passes.ended.wait()  # a reason does not wait for that


async def test_news_ends_a_pause_after_failures_and_nothing_else_does_so_at_once() -> None:
    class Woken(Passes):
        async def __call__(self, uid: str, place: Turn) -> Outcome | None:
            # Three wake-ups of the engines', one of people's: each pass but the first is theirs.
            for _ in range(3):
                asyncio.get_running_loop().call_soon(self.wakeups.wake, KEY)
            later = asyncio.get_running_loop().call_later
            later(0.01, lambda: self.wakeups.wake(KEY, news=True))
            return await super().__call__(uid, place)

    passes = Woken(False, False, False, True, interval=3600.0)
    async with running(passes, SLOW) as made:
        made.add("u", KEY)
        await passes.ended.wait()
        assert passes.count == 4


async def test_what_engines_say_after_a_failure_is_heard_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rounds, "_QUIET_SECONDS", 0.01)
    passes = Passes(False, True, interval=3600.0)
    async with running(passes, SLOW) as made:
        await over(made, passes, 1)
        passes.wakeups.wake(KEY)
        await passes.ended.wait()


async def test_a_cut_ends_the_running_pass_and_the_next_one_follows_at_once() -> None:
    cut = asyncio.Event()

    class Long(Passes):
        async def __call__(self, uid: str, place: Turn) -> Outcome | None:
            if not self.count:
                self.count += 1
                try:
                    await asyncio.Event().wait()
                finally:
                    cut.set()
            return await super().__call__(uid, place)

    passes = Long(True, interval=3600.0)
    async with running(passes) as made:
        made.add("u", KEY)
        while not passes.count:
            await asyncio.sleep(0)
        made.cut("u")
        await passes.ended.wait()
    assert cut.is_set()


async def test_a_pass_that_is_cut_off_before_it_began_keeps_no_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rounds, "_PLACES", 1)
    passes = Passes(True, True, interval=3600.0)
    async with running(passes) as made:
        made.add("u", KEY)
        while not made._rounds["u"].task:
            await asyncio.sleep(0)
        assert not passes.count
        made.cut("u")
        made.add("v", "ns/b")
        await passes.ended.wait()


async def test_the_end_cuts_off_passes_and_none_follows() -> None:
    class Long(Passes):
        async def __call__(self, uid: str, place: Turn) -> Outcome | None:
            self.count += 1
            await asyncio.Event().wait()
            return None

    passes = Long()
    async with running(passes) as made:
        made.add("u", KEY)
        while not passes.count:
            await asyncio.sleep(0)
    assert passes.count == 1
    left = [task for task in asyncio.all_tasks() if task.get_name() in (KEY, "rounds")]
    assert left == []


class Hanging(Passes):
    """Passes without an end; `ended` is set when the fifth begins."""

    async def __call__(self, uid: str, place: Turn) -> Outcome | None:
        self.count += 1
        if self.count == 5:
            self.ended.set()
        await asyncio.Event().wait()
        return None


async def test_passes_at_a_time_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "_PLACES", 2)
    monkeypatch.setattr(rounds, "_LONG_SECONDS", 3600.0)
    passes = Hanging()
    async with running(passes) as made:
        for number in range(5):
            made.add(f"u-{number}", f"ns/{number}")
        for _ in range(20):
            await asyncio.sleep(0)
        assert passes.count == 2


async def test_a_pass_that_waits_for_long_leaves_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "_PLACES", 2)
    monkeypatch.setattr(rounds, "_LONG_SECONDS", 0.01)
    passes = Hanging()
    async with running(passes) as made:
        for number in range(5):
            made.add(f"u-{number}", f"ns/{number}")
        await passes.ended.wait()


async def test_an_object_says_something_new_unless_only_its_status_changed() -> None:
    seen = Seen()
    body = {"metadata": {"uid": "u", "generation": 1, "resourceVersion": "1"}}

    def edited(**changes: Any) -> dict[str, Any]:
        return {"metadata": {**body["metadata"], **changes}}

    assert seen.changed(body)
    assert not seen.changed(edited(resourceVersion="2"))
    for changes in (
        {"generation": 2},
        {"annotations": {"lorafleet.dev/paused": "true"}},
        {"deletionTimestamp": "2026-01-01T00:00:00Z"},
        {"uid": "v"},
    ):
        assert seen.changed(edited(**changes)), changes
        assert not seen.changed(edited(**changes))
    seen.forget("u")
    assert seen.changed(body)


async def test_an_object_and_its_namesake_are_both_woken_until_one_ends() -> None:
    passes = Passes()
    woken = []

    class One:
        def __init__(self, name: str) -> None:
            self.name = name

        def wake(self, *, news: bool = False) -> None:
            woken.append(self.name)

        def cut(self, *, news: bool = True) -> None:
            raise AssertionError

    old, new = One("old"), One("new")
    passes.wakeups.add(KEY, old)
    passes.wakeups.add(KEY, new)
    passes.wakeups.wake(KEY)
    passes.wakeups.remove(KEY, old)
    passes.wakeups.wake(KEY)
    assert woken == ["old", "new", "new"]


@pytest.mark.parametrize("failures", [1, 2, 5, 9, 40])
def test_backoff_doubles_up_to_its_limit_with_at_most_half_taken_away(failures: int) -> None:
    settings = OperatorSettings(backoff_seconds=1.0, backoff_limit_seconds=300.0)
    longest = settings.backoff(failures, 0.0)
    assert longest == min(2.0 ** (failures - 1), 300.0)
    assert settings.backoff(failures, 1.0) == longest / 2
