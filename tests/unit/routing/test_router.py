"""What the router keeps up to date, for how long, and what it takes away: against a server of objects."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from known_fleet import Link, Links
from kubernetes.aio.client import ApiClient, ApiException
from lorafleet_operator import term
from lorafleet_operator.cluster.owned import ROUTE, SERVICE, SLICE, Json, Key, Owned
from lorafleet_operator.holders import Holders
from lorafleet_operator.route import route
from lorafleet_operator.routing.endpoints import HttpRoute, Intent
from lorafleet_operator.routing.router import Router
from operator_builders import adapter, engine, facts, loaded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

WANTED = Intent("team-a", "sql", "uid-sql", "team-a/sql", 8000)
THE_ROUTE: Key = (ROUTE, "team-a", "lora-sql")
THE_SLICE: Key = (SLICE, "team-a", "lora-sql.v4-0")


class Objects(Owned):
    """Objects that a server keeps; `known` to others, who may have started after they were made."""

    def __init__(self, api: ApiClient) -> None:
        super().__init__(api)
        self.there: dict[Key, Json] = {}
        self.writes = 0
        self.refused = ""
        """Kind of which nothing may be written."""
        self._has_routes = True

    async def _call(self, verb: str, key: Key, body: Json) -> Json:
        term.check()  # as the client of the API server does
        if key[0] == self.refused:
            raise ApiException(status=403, reason="Forbidden")
        self.writes += 1
        if verb == "DELETE":
            return self.there.pop(key)
        before = self.there.get(key, {})
        metadata = {"uid": key[2], "resourceVersion": str(self.writes), "labels": {}}
        metadata |= before.get("metadata", {}) | body.get("metadata", {})
        metadata |= {"uid": key[2], "resourceVersion": str(self.writes)}
        self.there[key] = {**before, **body, "metadata": metadata}
        return self.there[key]

    async def _look(self, key: Key) -> None:
        if key in self.there:
            self.note(key[0], self.there[key])


@asynccontextmanager
async def routers() -> AsyncIterator[tuple[Router, Objects]]:
    """A router of one adapter that `engine-0` serves."""
    view = replace(engine("engine-0", loaded()), pod=replace(engine("engine-0").pod, ip="10.9.0.1"))
    view = replace(view, pod=replace(view.pod, ready=True))
    assert view.inventory is not None
    holders = Holders()
    holders.note(view.uid, view.inventory)
    async with ApiClient() as api:
        objects = Objects(api)
        links: Any = Links({view.uid: Link(view)})
        router = Router(objects, links, holders, {view.uid: view.pod})
        yield router, objects
        await router.close()


async def looked_again(router: Router) -> None:
    """Tell of the engine, and wait until nothing is left to look at."""
    router.concerns((), "uid-engine-0")
    if router._settling is not None:
        await router._settling


async def test_a_route_that_is_not_wanted_goes_also_when_only_the_status_knows_it() -> None:
    async with routers() as (router, objects):
        route = HttpRoute("front", "gateways", hostname="sql.example")
        assert await router.show(replace(WANTED, http_route=route)) is None
        assert objects.there.keys() == {(SERVICE, "team-a", "lora-sql"), THE_SLICE, THE_ROUTE}
        del objects._seen[THE_ROUTE]  # as in an operator that has just started
        assert await router.show(WANTED, [THE_ROUTE]) is None
        assert objects.there.keys() == {(SERVICE, "team-a", "lora-sql"), THE_SLICE}
        assert await router.show(WANTED, [THE_ROUTE]) is None, "it is gone already"


async def test_a_route_that_may_not_be_deleted_stays_in_the_status_until_it_is_gone() -> None:
    async with routers() as (router, objects):
        route_of = HttpRoute("front", "gateways", hostname="sql.example")
        await router.show(replace(WANTED, http_route=route_of))
        del objects._seen[THE_ROUTE]
        objects.refused = ROUTE
        fleet: Any = SimpleNamespace(router=router)
        status: dict[str, Any] = {"routing": {"service": "lora-sql", "httpRoute": "lora-sql"}}
        for refused in (True, False):
            found = facts(
                engine("engine-0", loaded()),
                adapter=adapter(status=status, routing={"service": True}),
            )
            await route(found, fleet)
            assert found.routing is not None
            assert (found.routing_problem is not None, THE_ROUTE in objects.there) == (
                refused,
                refused,
            )
            assert found.routing.http_route == ("lora-sql" if refused else "")
            status["routing"] = found.routing.to_api()
            objects.refused = ""


async def test_what_is_forgotten_is_left_to_others() -> None:
    async with routers() as (router, objects):
        await router.show(WANTED)
        assert objects.there[THE_SLICE]["endpoints"][0]["addresses"] == ["10.9.0.1"]
        router.forget(WANTED.key, "uid-of-a-namesake")
        objects.there[THE_SLICE]["endpoints"] = []
        objects.note(SLICE, {**objects.there[THE_SLICE], **version(objects, 90)})
        await looked_again(router)
        assert objects.there[THE_SLICE]["endpoints"][0]["addresses"] == ["10.9.0.1"]
        router.forget(WANTED.key, WANTED.uid)
        before = objects.writes
        objects.note(SLICE, {**objects.there[THE_SLICE], "endpoints": [], **version(objects, 91)})
        await looked_again(router)
        assert objects.writes == before
        assert router._named == {}


def version(objects: Objects, number: int) -> Json:
    return {"metadata": {**objects.there[THE_SLICE]["metadata"], "resourceVersion": str(number)}}


async def test_nothing_is_written_after_the_term_but_in_a_later_one() -> None:
    async with routers() as (router, objects):
        first, second = term.Term(), term.Term()
        with first.acting():
            await router.show(WANTED)
        first.end()
        before = objects.writes
        objects.note(SLICE, {**objects.there[THE_SLICE], "endpoints": [], **version(objects, 90)})
        await looked_again(router)
        assert objects.writes == before
        with second.acting():
            await router.show(WANTED)
        assert objects.writes == before + 1
        objects.note(SLICE, {**objects.there[THE_SLICE], "endpoints": [], **version(objects, 91)})
        await looked_again(router)
        assert objects.writes == before + 2, "it follows the engines again"


async def test_a_withdrawal_and_a_look_at_one_time_leave_nothing() -> None:
    async with routers() as (router, objects):
        await router.show(WANTED)
        router.concerns((), "uid-engine-0")
        await asyncio.gather(router.withdraw(WANTED.key, WANTED.uid), looked_again(router))
        assert objects.there == {}
