"""The table of served names counts a revision's users from the look-up to the end of the answer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from lorafleet_vllm import outcomes
from lorafleet_vllm.loaded import Loaded
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
    names = ServedNames(VOLUME, {"plain": Request("plain", 7, "/adapters/plain")})
    names["t/a"] = loaded(names, "ab", 1).request
    return names


def loaded(names: ServedNames, byte: str, lora_int_id: int, served_name: str = "t/a") -> Loaded:
    """Add a revision as the control does when the engine has loaded it."""
    path = VOLUME.lora_path(RevisionPath(byte * 32, "direct"))
    request = Request(f"{served_name}@{byte * 32}", lora_int_id, path)
    found = Loaded(served_name, f"sha256:{byte * 32}", "direct", request)
    names.add(found)
    return found


def pinned(byte: str, served_name: str = "t/a") -> str:
    return f"{served_name}@{byte * 6}"


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


def test_cards_show_served_names_and_leave_others_alone() -> None:
    names = table()
    loaded(names, "cd", 2).verified = True
    cards = [Card("base"), *(Card(each.lora_name) for each in names.values())]
    assert [card.id for card in names.rewrite_cards(cards)] == ["base", "plain", "t/a"]


def test_a_pinned_name_means_its_revision_wherever_the_served_name_is() -> None:
    names = table()
    new = loaded(names, "cd", 2)
    new.verified = True
    assert (names[pinned("ab")].lora_int_id, names[pinned("cd")].lora_int_id) == (1, 2)
    assert pinned("ef") not in names
    assert pinned("ab", "t/b") not in names
    names["t/a"] = new.request
    assert (names["t/a"].lora_int_id, names[pinned("cd")].lora_int_id) == (2, 2)
    assert pinned("ab") not in names, "neither served nor proved"


def test_what_is_not_proved_is_nobodys_before_it_is_served() -> None:
    names = table()
    new = loaded(names, "cd", 2)
    assert pinned("cd") not in names
    new.verified = True
    assert pinned("cd") in names


def test_what_is_closed_gets_no_new_request_but_what_is_served_does() -> None:
    names = table()
    new = loaded(names, "cd", 2)
    new.verified = True
    names.close("t/a")
    assert pinned("cd") not in names
    assert pinned("ab") in names, "it is what t/a means"
    del names["t/a"]
    assert pinned("ab") not in names
    assert names.here("t/a") == []


def test_a_forgotten_revision_is_not_there() -> None:
    names = table()
    new = loaded(names, "cd", 2)
    new.verified = True
    names.forget(new)
    assert pinned("cd") not in names
    assert pinned("ab") in names


def test_a_stock_adapter_takes_no_pinned_name_of_ours() -> None:
    names = table()
    names[pinned("ab")] = Request(pinned("ab"), 9, "/adapters/other")
    assert names[pinned("ab")].lora_int_id == 1
    names["x@abababababab"] = Request("x@abababababab", 8, "/adapters/other")
    assert names["x@abababababab"].lora_int_id == 8


async def test_pinned_requests_are_users_of_their_revision() -> None:
    names, go_on = table(), asyncio.Event()

    async def handler() -> None:
        assert names[pinned("ab")].lora_int_id == 1
        await go_on.wait()

    task = asyncio.create_task(handler())
    await asyncio.sleep(0)
    assert names.holders(1) == 1
    go_on.set()
    await task
    assert names.holders(1) == 0


def test_answers_bear_the_name_that_was_asked_for() -> None:
    names = table()
    token = outcomes.current.set(outcomes.Request())
    try:
        for name in ("t/a", pinned("ab")):
            assert names.model_name(names[name]) == name
    finally:
        outcomes.current.reset(token)
    assert names.model_name(names[pinned("ab")]) == "t/a", "outside of a request"


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
