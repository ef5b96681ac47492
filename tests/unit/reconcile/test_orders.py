"""How orders go out to several engines."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from known_fleet import KnownFleet, Link, Links
from lorafleet_operator.facts import Placed
from lorafleet_operator.orders import retire
from lorafleet_operator.world import World
from operator_builders import engine, facts, loaded

if TYPE_CHECKING:
    from lorafleet.v1alpha1 import sidecar_pb2 as pb


class Sidecars(Links):
    """Sidecars that answer an order only once as many engines as there are have got one."""

    def __init__(self, *names: str) -> None:
        views = [engine(name, loaded(), loaded(served_name="old")) for name in names]
        super().__init__({view.uid: Link(view) for view in views})
        self.views = views
        self.asked: dict[str, list[str]] = {}
        self._all = asyncio.Event()
        for uid, link in self.items():
            link.client = Client(self, uid)  # type: ignore[attr-defined]
            link.refresh = self._refresh  # type: ignore[attr-defined]

    async def _refresh(self) -> None:
        return None

    async def take(self, uid: str, served_name: str) -> None:
        self.asked.setdefault(uid, []).append(served_name)
        if len(self.asked) == len(self):
            self._all.set()
        await self._all.wait()


class Client:
    def __init__(self, sidecars: Sidecars, uid: str) -> None:
        self._sidecars, self._uid = sidecars, uid

    async def unload(self, request: pb.UnloadAdapterRequest, _: float) -> None:
        await self._sidecars.take(self._uid, request.served_name)


async def test_engines_unload_at_once_and_the_names_of_one_after_another() -> None:
    sidecars = Sidecars("a", "b", "c")
    fleet: Any = KnownFleet(World({}, {}, {}, {}, ()), sidecars)
    found = facts(*sidecars.views, placed=Placed(lost_name=True))
    async with asyncio.timeout(60):  # one by one they would wait for ever
        await retire(found, fleet)
    assert sidecars.asked == {f"uid-{name}": ["old", "team-a/sql"] for name in "abc"}
    assert found.troubles == {}
