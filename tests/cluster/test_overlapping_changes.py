"""Changes that fall into each other's rollouts: whatever came last is what is served, and nothing else.

No resync helps: an operator that sleeps through a change would sleep until the test fails.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from localstack import LocalStack
from simulated_engine import Behaviour
from simulated_fleet import SimulatedFleet

if TYPE_CHECKING:
    from pathlib import Path

    from localcluster import LocalCluster

ENGINES, REPLICAS, SECONDS = 4, 3, 120
CANARY = {"engines": 1, "holdSeconds": 1}
ROLLOUTS = [
    {"canary": CANARY},
    {"canary": CANARY, "maxSurge": 1},
    {"maxSurge": 1, "maxUnavailable": 1},
    {"atomic": True},
    {},
]


class Author:
    """Someone who changes adapters without waiting for what came of the last change."""

    def __init__(self, fleet: SimulatedFleet, seed: int) -> None:
        self.fleet = fleet
        self.draw = random.Random(seed)
        self.last: dict[str, int] = {}
        self.log: list[str] = []

    async def update(self, name: str) -> None:
        self.last[name] = self.last.get(name, 0) + 1
        rollout = self.draw.choice(ROLLOUTS)
        await self.fleet.apply(name, self.last[name], rollout=rollout, revision=None)

    async def go_back(self, name: str) -> None:
        """Name a revision of the history, if there is one yet."""
        known = self.fleet.adapters[name]
        history = known.status.get("history") or []
        if history:
            await self.fleet.apply(name, known.revision, digest=history[0], revision=history[0])

    async def replace(self, name: str) -> None:
        await self.fleet.delete(name)
        await self.update(name)

    async def lose_all(self, _: str) -> None:
        """The pool is scaled to nothing and back, while updates run; all arenas are lost."""
        for name in self.fleet.adapters:
            await self.update(name)
        await self.fleet.lose_engines(list(self.fleet.engines))
        await self.pause()
        await self.update(self.draw.choice(list(self.fleet.adapters)))
        for number in range(ENGINES):
            await self.fleet.add_engine(f"engine-{self.draw.randrange(1 << 40)}-{number}")

    async def restart(self, _: str) -> None:
        self.draw.choice(list(self.fleet.engines.values())).restart_engine()

    async def pause(self) -> None:
        await asyncio.sleep(self.draw.choice([0.0, 0.05, 0.3, 1.0]))

    async def act(self) -> None:
        change = self.draw.choice(
            [self.update, self.update, self.go_back, self.go_back, self.replace, self.restart]
        )
        name = self.draw.choice(list(self.fleet.adapters))
        self.log.append(f"{change.__name__} {name}")
        await change(name)
        await self.pause()


def left_over(fleet: SimulatedFleet) -> list[str]:
    """Return what is loaded and should not be."""
    wanted = {(f"{fleet.namespace}/{n}", each.digest) for n, each in fleet.adapters.items()}
    return [
        f"{name}: {entry.adapter} {entry.digest[:19]}"
        for name, engine in fleet.engines.items()
        for key, entry in engine.loaded.items()
        if key not in wanted
    ]


async def test_what_was_asked_for_last_is_served_and_nothing_else(
    cluster: LocalCluster, namespace: str, tmp_path: Path
) -> None:
    behaviour = Behaviour(load_seconds=0.05, answer_seconds=0.02, restore_seconds=0.1)
    fleet = SimulatedFleet(
        cluster.kubeconfig, tmp_path, namespace, engines=ENGINES, replicas=REPLICAS,
        behaviour=behaviour,
    )  # fmt: skip
    with LocalStack(tmp_path) as stack:
        async with fleet:
            author = Author(fleet, seed=1)
            stack.start_operator(
                cluster.kubeconfig,
                LORAFLEET_NAMESPACES=namespace,
                LORAFLEET_VOLUME_ROOT=str(fleet.root),
                LORAFLEET_RESYNC_SECONDS="3600",
            )
            for name in "abc":
                await author.update(name)
            for changes in [0, 8, 8]:
                if changes == 0:
                    await fleet.settled(SECONDS)
                for _ in range(changes):
                    await author.act()
                try:
                    await fleet.settled(SECONDS)
                    async with asyncio.timeout(SECONDS):
                        while left_over(fleet):
                            await asyncio.sleep(0.1)
                except TimeoutError as error:
                    statuses = {n: each.status for n, each in fleet.adapters.items()}
                    raise AssertionError(
                        f"{error}; {left_over(fleet)}; after {author.log}; {statuses}"
                    ) from None
                author.log.append("settled")
            await author.lose_all("")
            await fleet.settled(SECONDS)
            async with asyncio.timeout(SECONDS):  # engines serve before the status says so
                while any("canary" in each.status for each in fleet.adapters.values()):
                    await asyncio.sleep(0.1)
