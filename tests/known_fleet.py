"""A fleet whose engines are what their connections have brought: no cluster, no gRPC."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lorafleet_operator.first_requests import Requested
from lorafleet_operator.holders import Holders
from lorafleet_operator.memory import Memory
from lorafleet_operator.pool_planner import PoolPlanner
from lorafleet_operator.settings import OperatorSettings
from lorafleet_operator.transfer.links import Endpoint
from lorafleet_operator.wake import Wakeups

if TYPE_CHECKING:
    from lorafleet_operator.api.v1alpha1 import EnginePool
    from lorafleet_operator.world import EngineView, KnownAdapter, World


class Link:
    """A connection that has brought `view`."""

    def __init__(self, view: EngineView) -> None:
        self.view = view
        self.endpoint = Endpoint(view.pod.key, view.uid, "127.0.0.1", 1)
        self.tried = asyncio.Event()
        self.tried.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.view, name)

    def ill_for(self) -> float:
        return self.view.ill_for

    def away_for(self) -> float:
        return self.view.ill_for


class Links(dict[str, Link]):
    """Connections by pod UID."""

    def all(self) -> list[Link]:
        return list(self.values())


class Sleeper:
    """What a wake-up wakes."""

    def __init__(self) -> None:
        self.woken = asyncio.Event()
        self.cuts = 0

    def wake(self, *, news: bool = False) -> None:
        self.woken.set()

    def cut(self, *, news: bool = True) -> None:
        self.cuts += 1
        self.wake()


@dataclass
class KnownFleet:
    """As much of the operator's fleet as observing and placing needs."""

    world: World
    links: Links
    settings: OperatorSettings = field(default_factory=OperatorSettings)
    memory: Memory = field(default_factory=Memory)
    holders: Holders = field(default_factory=Holders)
    requested: Requested = field(default_factory=Requested)
    fresh: list[Any] = field(default_factory=list)
    wakeups: Wakeups = field(default_factory=Wakeups)
    pools: PoolPlanner = field(default_factory=PoolPlanner)

    def planner(self, _: str) -> PoolPlanner:
        return self.pools

    def barred(self, _: KnownAdapter) -> bool:
        return False

    def sharing_engines(self, _: EnginePool) -> list[PoolPlanner]:
        return []
