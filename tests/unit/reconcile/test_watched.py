"""What lists and events make known: the newest of each object, and who is gone."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from kubernetes.aio.client import ApiClient
from lorafleet_operator.cluster.lists import Page
from lorafleet_operator.fleet import Fleet
from lorafleet_operator.rounds import Outcome, Rounds
from lorafleet_operator.settings import OperatorSettings
from lorafleet_operator.watched import _KINDS, NAMESPACES, NODES, Watched

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from lorafleet_operator.fair import Turn

ADAPTERS = "loraadapters"


def body(name: str, version: int, **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "lorafleet.dev/v1alpha1",
        "kind": "LoRAAdapter",
        "metadata": {
            "namespace": "team-a",
            "name": name,
            "uid": f"uid-{name}",
            "generation": 1,
            "resourceVersion": str(version),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            **metadata,
        },
        "spec": {
            "baseModel": "org/base",
            "poolRef": {"name": "pool"},
            "source": {"persistentVolumeClaim": {"claimName": "c", "path": name}},
        },
    }


class Told:
    """The watched, and the adapters that passes ran for."""

    def __init__(self, api: ApiClient) -> None:
        self.watched = Watched(())
        self.fleet = Fleet(OperatorSettings(), self.watched.world, api)
        self.passes: list[str] = []
        each = {"wakeups": self.fleet.wakeups, "settings": self.fleet.settings}
        self.rounds = Rounds(self._one_pass, **each)  # type: ignore[arg-type]
        self.watched.serve(self.fleet, adapters=self.rounds, pools=self.rounds)

    async def _one_pass(self, uid: str, place: Turn) -> Outcome | None:
        self.passes.append(uid)
        return None if self.fleet.world.gone(uid) else Outcome(True, 3600.0)

    def list_(
        self, version: int, *items: dict[str, Any], first: bool = True, last: bool = True
    ) -> None:
        self.watched.listed(Page(ADAPTERS, "", list(items), version, first=first, last=last))

    def list_others(self) -> None:
        for plural in (*_KINDS, NAMESPACES, NODES):
            if plural != ADAPTERS:
                self.watched.listed(Page(plural, "", [], 1, first=True, last=True))

    def event(self, item: dict[str, Any], *, gone: bool = False) -> None:
        self.watched.heard(ADAPTERS, item, gone=gone)

    def keys(self) -> set[str]:
        return {k for keys in self.fleet.world.existing.values() for k in keys}

    async def settle(self) -> list[str]:
        for _ in range(10):
            await asyncio.sleep(0)
        found, self.passes[:] = sorted(self.passes), []
        return found


@asynccontextmanager
async def told() -> AsyncIterator[Told]:
    async with ApiClient() as api:
        made = Told(api)
        yield made
        await made.rounds.close()
        await made.fleet.close()


async def test_no_pass_begins_before_the_last_page_of_every_list() -> None:
    async with told() as it:
        it.list_(9, body("a", 3), last=False)
        it.list_others()
        assert await it.settle() == []
        it.list_(9, body("b", 4), first=False)
        assert await it.settle() == ["uid-a", "uid-b"]


async def test_who_went_while_the_watch_was_broken_is_missed_in_the_next_list() -> None:
    async with told() as it:
        it.list_(9, body("a", 3), body("b", 4))
        it.list_others()
        await it.settle()
        it.list_(20, body("a", 3), last=False)
        assert it.keys() == {"team-a/a", "team-a/b"}
        it.list_(20, body("c", 12), first=False)
        assert it.keys() == {"team-a/a", "team-a/c"}
        assert await it.settle() == ["uid-b", "uid-c"]
        assert it.fleet.world.gone("uid-b")


async def test_an_event_that_comes_late_neither_undoes_a_list_nor_brings_back_who_went() -> None:
    async with told() as it:
        it.list_(9, body("a", 3), body("b", 4))
        it.list_others()
        it.list_(20, body("a", 15, generation=2))
        await it.settle()
        it.event(body("a", 11))
        it.event(body("b", 12))
        assert it.keys() == {"team-a/a"}
        assert it.fleet.bodies.get("uid-a")["metadata"]["generation"] == 2  # type: ignore[index]
        assert await it.settle() == []
        it.event(body("b", 21))
        assert it.keys() == {"team-a/a", "team-a/b"}


async def test_what_people_change_wakes_and_what_a_pass_wrote_does_not() -> None:
    async with told() as it:
        it.list_(9, body("a", 3))
        it.list_others()
        assert await it.settle() == ["uid-a"]
        it.event({**body("a", 10), "status": {"rank": 8}})
        assert await it.settle() == []
        it.event(body("a", 11, generation=2))
        assert await it.settle() == ["uid-a"]
        it.event(body("a", 12, generation=2, deletionTimestamp="2026-01-01T00:00:00Z"))
        assert await it.settle() == ["uid-a"]
        it.event(body("a", 13), gone=True)
        assert await it.settle() == ["uid-a"]
        assert it.keys() == set()


async def test_an_adapter_that_cannot_be_read_exists_and_an_answer_brings_nobody_back() -> None:
    async with told() as it:
        broken = {**body("a", 3), "spec": {"baseModel": 5}}
        it.list_(9, broken)
        it.list_others()
        assert it.keys() == {"team-a/a"}
        assert "team-a/pool" not in it.fleet.world.adapters
        it.fleet.bodies.drop("uid-a")
        it.fleet.bodies.answered(body("a", 30))
        assert it.fleet.bodies.get("uid-a") is None


async def test_a_namespace_that_goes_leaves_its_names_to_others_until_one_of_its_name_comes() -> (
    None
):
    def namespace(uid: str, version: int) -> dict[str, Any]:
        return {"metadata": {"name": "team-b", "uid": uid, "resourceVersion": str(version)}}

    def list_namespaces(version: int, *items: dict[str, Any]) -> None:
        page = Page(NAMESPACES, "", list(items), version, first=True, last=True)
        it.watched.listed(page)

    async with told() as it:
        named = body("a", 3)
        named["spec"]["servedName"] = "team-b/model"
        it.list_(9, named)
        it.list_others()
        assert await it.settle() == ["uid-a"]
        list_namespaces(10, namespace("u1", 10))
        assert it.fleet.world.is_namespace("team-b")
        assert await it.settle() == ["uid-a"]
        list_namespaces(12, namespace("u2", 12))
        assert it.fleet.world.is_namespace("team-b"), "another one of that name is there"
        it.watched.heard(NAMESPACES, namespace("u2", 13), gone=True)
        assert not it.fleet.world.is_namespace("team-b")
        assert await it.settle() == ["uid-a"]
        assert it.watched._namespace_names == {}


async def test_a_pool_that_nobody_has_and_nobody_names_any_more_is_forgotten() -> None:
    async with told() as it:
        it.list_(9)
        it.list_others()
        for number in range(3):
            made = body("a", 10 + 2 * number)
            made["spec"]["poolRef"]["name"] = f"invented-{number}"
            it.event(made)
            await it.settle()
            assert len(it.fleet._planners) == 1
            gone = body("a", 11 + 2 * number)
            it.event(gone, gone=True)
            await it.settle()
            assert it.fleet._planners == {}


async def test_a_packed_body_is_the_newest_without_what_nobody_reads() -> None:
    async with told() as it:
        applied = {"kubectl.kubernetes.io/last-applied-configuration": "{}", "mine": "1"}
        first = body("a", 10, annotations=applied, managedFields=[{"manager": "kubectl"}])
        assert it.fleet.bodies.keep(first)
        assert not it.fleet.bodies.keep(body("a", 9))
        kept = it.fleet.bodies.get("uid-a")
        assert kept is not None
        assert kept["metadata"]["annotations"] == {"mine": "1"}
        assert "managedFields" not in kept["metadata"]
        assert it.fleet.bodies.newest(body("a", 11))["metadata"]["resourceVersion"] == "11"
        assert it.fleet.bodies.newest(body("a", 8))["metadata"]["resourceVersion"] == "10"


async def test_while_a_list_is_missing_only_the_missing_ones_prove_that_the_operator_lives() -> (
    None
):
    """Who may not read one kind waits for ever and does nothing, whatever else is heard."""
    async with told() as it:
        loop = asyncio.get_running_loop()

        def alive_after(news: Callable[[], None]) -> bool:
            it.fleet.alive_at = before = loop.time() - 1000.0
            news()
            return it.fleet.alive_at > before

        assert alive_after(it.list_others)
        assert not alive_after(it.list_others), "again, while that of adapters is missing"
        assert not alive_after(it.fleet.alive)
        assert alive_after(lambda: it.list_(1, body("a", 1)))
        assert alive_after(it.fleet.alive)
        assert alive_after(lambda: it.event(body("a", 2)))
