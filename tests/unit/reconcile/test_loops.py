"""The loop around passes, and the framework's trap with its stop flag."""

from __future__ import annotations

import asyncio
from typing import Any

import kopf
import pytest
from lorafleet_operator import loops
from lorafleet_operator.handlers import deleted
from lorafleet_operator.settings import OperatorSettings
from lorafleet_operator.wake import Seen, Wakeups

FAST = OperatorSettings(backoff_seconds=0.001, backoff_limit_seconds=0.002)


class Flag:
    """The framework's stop flag, as far as loops use it."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    def __bool__(self) -> bool:
        return self.event.is_set()

    def wait(self, timeout: float | None = None) -> Any:
        return self.event.wait()


class Passes:
    """Counts passes and plays their results; stops the loop after the last."""

    def __init__(self, *results: bool | Exception) -> None:
        self.results = list(results)
        self.count = 0
        self.flag = Flag()

    async def __call__(self) -> bool:
        self.count += 1
        result = self.results.pop(0)
        if not self.results:
            self.flag.event.set()
        if isinstance(result, Exception):
            raise result
        return result


async def keep(passes: Passes, wakeups: Wakeups, interval: float = 0.001) -> None:
    await loops.keep(
        "ns/a",
        passes,
        wakeups=wakeups,
        settings=FAST,
        stopped=passes.flag,
        interval=lambda: interval,
    )


async def test_an_error_never_ends_a_loop() -> None:
    passes = Passes(RuntimeError("boom"), False, ValueError("again"), True, True)
    await keep(passes, Wakeups())
    assert passes.count == 5


async def test_a_wake_up_during_a_pass_is_kept_for_the_next() -> None:
    wakeups = Wakeups()

    class Waking(Passes):
        async def __call__(self) -> bool:
            wakeups.wake("ns/a")
            return await super().__call__()

    passes = Waking(True, True, True)
    await keep(passes, wakeups, interval=3600.0)
    assert passes.count == 3


async def test_news_ends_a_pause_after_failures_and_nothing_else_does_so_at_once() -> None:
    wakeups = Wakeups()
    slow = OperatorSettings(backoff_seconds=3600.0, backoff_limit_seconds=3600.0)

    class Woken(Passes):
        async def __call__(self) -> bool:
            # Three wake-ups of the engines', one of people's: each pass but the first is theirs.
            for _ in range(3):
                asyncio.get_running_loop().call_soon(wakeups.wake, "ns/a")
            later = asyncio.get_running_loop().call_later
            later(0.01, lambda: wakeups.wake("ns/a", news=True))
            return await super().__call__()

    passes = Woken(False, False, False, True)
    await loops.keep(
        "ns/a",
        passes,
        wakeups=wakeups,
        settings=slow,
        stopped=passes.flag,
        interval=lambda: 3600.0,
    )
    assert passes.count == 4


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


async def test_a_namesake_that_comes_before_the_old_loop_ended_keeps_its_own_flag() -> None:
    wakeups = Wakeups()
    with wakeups.loop("ns/a") as mine:
        with wakeups.loop("ns/a") as old:
            wakeups.wake("ns/a")
            await old.wait(3600.0)
        await mine.wait(3600.0)
        wakeups.wake("ns/a")
        await mine.wait(3600.0)


async def test_a_stop_cuts_off_the_running_pass() -> None:
    flag, cut = Flag(), asyncio.Event()

    async def forever() -> bool:
        flag.event.set()
        try:
            await asyncio.Event().wait()
        finally:
            cut.set()
        return True

    await loops.keep(
        "ns/a", forever, wakeups=Wakeups(), settings=FAST, stopped=flag, interval=lambda: 1.0
    )
    assert cut.is_set()


async def test_a_loop_ends_before_its_next_pass_once_its_object_is_gone() -> None:
    living = {"uid-1"}
    passes = Passes(True, True, True)

    async def last() -> bool:
        living.clear()
        return await passes()

    flag = loops.StoppedOr(passes.flag, lambda: "uid-1" not in living)
    await loops.keep(
        "ns/a", last, wakeups=Wakeups(), settings=FAST, stopped=flag, interval=lambda: 0.001
    )
    assert passes.count == 1
    assert not passes.flag


async def test_a_deletion_is_repeated_until_it_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "_RETRY_SECONDS", 0.0)
    passes = Passes(RuntimeError("the API server is away"), False, True)
    await loops.insist("ns/a", passes)
    assert passes.count == 3


@pytest.mark.parametrize("failures", [1, 2, 5, 9, 40])
def test_backoff_doubles_up_to_its_limit_with_at_most_half_taken_away(failures: int) -> None:
    settings = OperatorSettings(backoff_seconds=1.0, backoff_limit_seconds=300.0)
    longest = settings.backoff(failures, 0.0)
    assert longest == min(2.0 ** (failures - 1), 300.0)
    assert settings.backoff(failures, 1.0) == longest / 2


class Stopped:
    def __init__(self, reason: kopf.DaemonStoppingReason | None) -> None:
        self.reason = reason


@pytest.mark.parametrize("other", list(kopf.DaemonStoppingReason))
def test_only_a_deletion_unloads_not_an_exit_or_a_pause(other: kopf.DaemonStoppingReason) -> None:
    gone = kopf.DaemonStoppingReason.RESOURCE_DELETED
    assert deleted(Stopped(other)) is (other is gone)  # type: ignore[arg-type]
    assert deleted(Stopped(other | gone))  # type: ignore[arg-type]
    assert not deleted(Stopped(None))  # type: ignore[arg-type]
