"""The table of served names counts a revision's users from the look-up to the end of the answer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from lorafleet_vllm.served_names import ServedNames
from lorafleet_vllm.settings import RevisionPath, Volume

VOLUME = Volume(Path("/volume"))
PATH = VOLUME.lora_path(RevisionPath("ab" * 32, "direct"))


@dataclass
class Request:
    lora_name: str
    lora_int_id: int
    lora_path: str = PATH


@dataclass
class Card:
    id: str

    def model_copy(self, update: dict[str, str]) -> Card:
        return Card(**update)


def table() -> ServedNames:
    ours = Request("t/a@abab", 1)
    names = ServedNames(VOLUME, {"plain": Request("plain", 7, "/adapters/plain")})
    names["t/a"] = names["t/a@abab"] = ours
    return names


async def test_a_task_holds_what_it_looked_up_until_it_is_done() -> None:
    names, go_on = table(), asyncio.Event()

    async def handler() -> None:
        assert names["t/a"].lora_int_id == 1
        assert names["t/a"].lora_int_id == 1  # twice in one request counts once
        await go_on.wait()

    tasks = [asyncio.create_task(handler()) for _ in range(3)]
    await asyncio.sleep(0)
    assert names.holders(1) == 3
    tasks[0].cancel()
    await asyncio.wait([tasks[0]])
    assert names.holders(1) == 2
    go_on.set()
    await asyncio.wait(tasks)
    assert names.holders(1) == 0


async def test_moving_the_name_leaves_the_old_revision_held() -> None:
    names, go_on = table(), asyncio.Event()

    async def handler() -> int:
        found: int = names["t/a"].lora_int_id
        await go_on.wait()
        return found

    before = asyncio.create_task(handler())
    await asyncio.sleep(0)
    names["t/a"] = Request("t/a@cdcd", 2)
    after = asyncio.create_task(handler())
    await asyncio.sleep(0)
    assert (names.holders(1), names.holders(2)) == (1, 1)
    go_on.set()
    assert [await before, await after] == [1, 2]


async def test_looking_without_using_and_stock_adapters_count_nothing() -> None:
    names = table()
    assert names.peek("t/a").lora_int_id == 1
    assert names.peek("nobody") is None
    assert "t/a" in names
    assert names["plain"].lora_int_id == 7
    assert (names.holders(1), names.holders(7)) == (0, 0)


def test_outside_of_an_event_loop_nothing_is_held() -> None:
    names = table()
    assert names["t/a"].lora_int_id == 1
    assert names.holders(1) == 0


def test_cards_show_served_names_once_and_leave_others_alone() -> None:
    names = table()
    names["t/b"] = Request("t/a@abab", 1)
    names["t/hidden@ee"] = Request("t/hidden@ee", 3)
    cards = [Card("base"), Card("plain"), *(Card(r.lora_name) for r in names.values())]
    shown = [card.id for card in names.rewrite_cards(cards)]
    assert shown == ["base", "plain", "plain", "t/a", "t/b"]


def test_paths_are_ours_only_on_the_volume() -> None:
    assert VOLUME.revision_of(PATH) == RevisionPath("ab" * 32, "direct")
    for path in (
        "/volume/revisions/" + "ab" * 32,
        "/volume/revisions/" + "ab" * 32 + "/other",
        "/volume/revisions/abc/direct",
        "/elsewhere/revisions/" + "ab" * 32 + "/direct",
        "/volume/revisions/../" + "ab" * 32 + "/direct",
        "org/adapter",
        "",
    ):
        assert VOLUME.revision_of(path) is None, path
