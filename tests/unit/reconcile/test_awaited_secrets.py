"""Secrets that are waited for: asked after by name, once a round, until nobody waits."""

from __future__ import annotations

import asyncio

from lorafleet_operator.awaited_secrets import AwaitedSecrets, Referenced
from lorafleet_operator.cluster.requests import NoAnswer


class Versions:
    """An API server's Secrets; counts the questions."""

    def __init__(self, **versions: str) -> None:
        self.versions = versions
        self.asked: list[str] = []
        self.silent = 0
        self.woken: asyncio.Queue[str] = asyncio.Queue()

    async def ask(self, namespace: str, name: str) -> str:
        self.asked.append(f"{namespace}/{name}")
        if self.silent:
            self.silent -= 1
            raise NoAnswer("503")
        return self.versions.get(name, "")

    def secrets(self) -> AwaitedSecrets:
        return AwaitedSecrets(self.ask, self.woken.put_nowait, pause_seconds=0.001)


async def rounds(server: Versions, count: int) -> None:
    before = len(server.asked)
    while len(server.asked) < before + count:
        await asyncio.sleep(0.001)


async def test_whoever_used_another_version_is_woken_and_the_others_wait_on() -> None:
    server = Versions(keys="1", other="7")
    secrets = server.secrets()
    secrets.follow("a/one", Referenced("a", "keys", "1"))
    secrets.follow("a/two", Referenced("a", "keys", "1"))
    secrets.follow("a/three", Referenced("a", "other", "7"))
    secrets.follow("b/one", Referenced("b", "absent", ""))
    await rounds(server, 6)
    assert server.woken.empty()
    server.versions["keys"] = "2"
    assert {await server.woken.get(), await server.woken.get()} == {"a/one", "a/two"}
    server.versions["absent"] = "9"
    assert await server.woken.get() == "b/one"
    del server.versions["other"]
    assert await server.woken.get() == "a/three"
    await secrets.close()


async def test_two_adapters_of_one_secret_cost_one_question() -> None:
    server = Versions(keys="1")
    secrets = server.secrets()
    for name in ("one", "two", "three"):
        secrets.follow(f"a/{name}", Referenced("a", "keys", "0"))
    for _ in range(3):
        await server.woken.get()
    assert server.asked == ["a/keys"]
    await secrets.close()


async def test_nothing_is_asked_once_nobody_waits() -> None:
    server = Versions(keys="1")
    secrets = server.secrets()
    secrets.follow("a/one", Referenced("a", "keys", "1"))
    await rounds(server, 1)
    secrets.follow("a/one", None)
    assert secrets._rounds is not None
    async with asyncio.timeout(60):
        await secrets._rounds  # its end: nobody asks any more
    secrets.follow("a/two", Referenced("a", "keys", "0"))
    assert await server.woken.get() == "a/two"
    await secrets.close()


async def test_an_api_server_that_does_not_answer_is_asked_again() -> None:
    server = Versions(keys="2")
    server.silent = 3
    secrets = server.secrets()
    secrets.follow("a/one", Referenced("a", "keys", "1"))
    assert await server.woken.get() == "a/one"
    assert len(server.asked) == 4
    await secrets.close()
