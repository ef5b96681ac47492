"""An API server that hangs in the middle of everything: connections stay, and nothing is answered.

A cluster of its own: the others' tests go on. No resync helps.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import httpx
from localstack import LocalStack
from simulated_engine import Behaviour
from simulated_fleet import SimulatedFleet
from waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from localcluster import LocalCluster
    from localstack import Operator

ENGINES, REPLICAS, SECONDS = 4, 3, 120
NAMESPACE = "frozen"
FROZEN_SECONDS = float(os.environ.get("LORAFLEET_OUTAGE_SECONDS", "3"))
"""After nobody acts any more. Minutes by hand."""
LEASE_SECONDS = "5"
LATE = 4
"""Looks: half a second and more."""
CANARY = {"canary": {"engines": 1, "holdSeconds": 2}}


async def held(operator: Operator) -> int:
    """Return how many shards the operator says that it holds."""
    async with httpx.AsyncClient(timeout=SECONDS) as client:
        text = (await client.get(operator.metrics_url)).text
    line = "\nlorafleet_operator_shards_held "
    return int(float(text.partition(line)[2].partition("\n")[0]))


class Watchman:
    """Asks two operators in turn whether they hold the one shard."""

    def __init__(self, first: Operator, second: Operator) -> None:
        self._operators = (first, second)
        self.seen = [0, 0]
        """What each of them said last."""
        self.both = self.longest = 0
        """How often in a row, now and at most, one held it before and after the other was asked, who
        did so too. The figure of an operator that had no processor for a moment may be late."""

    async def look(self) -> None:
        while True:
            for one, other in ((0, 1), (1, 0)):
                before = await held(self._operators[one])
                between = await held(self._operators[other])
                after = await held(self._operators[one])
                self.seen[one], self.seen[other] = after, between
                self.both = self.both + 1 if before and between and after else 0
                self.longest = max(self.longest, self.both)
            await asyncio.sleep(0.1)


async def test_nothing_is_lost_while_it_hangs_and_one_operator_goes_on_when_it_answers_again(
    mortal: LocalCluster, tmp_path: Path
) -> None:
    fleet = SimulatedFleet(
        mortal.kubeconfig, tmp_path, NAMESPACE, engines=ENGINES, replicas=REPLICAS,
        behaviour=Behaviour(load_seconds=0.3), poll_seconds=3600,
    )  # fmt: skip
    settings = {
        "LORAFLEET_NAMESPACES": fleet.namespace,
        "LORAFLEET_VOLUME_ROOT": str(fleet.root),
        "LORAFLEET_RESYNC_SECONDS": "3600",
        "LORAFLEET_LEASE_NAMESPACE": fleet.namespace,
        "LORAFLEET_LEASE_SECONDS": LEASE_SECONDS,
    }
    with LocalStack(tmp_path) as stack:
        async with fleet:
            operators = [
                stack.start_operator(mortal.kubeconfig, **settings, LORAFLEET_IDENTITY=name)
                for name in ("first", "second")
            ]
            for each in operators:
                await asyncio.to_thread(each.wait)
            watchman = Watchman(*operators)
            watching = asyncio.create_task(watchman.look())
            for number in range(8):
                await fleet.apply(f"a-{number}")
            await fleet.settled(SECONDS)
            before, unloads = fleet.served(), fleet.books.unloads
            await fleet.stir(CANARY)
            with mortal.frozen("kube-apiserver"):
                await until(lambda: sum(watchman.seen) == 0, SECONDS)
                await asyncio.sleep(0.5)  # answers of orders that were given before
                orders = fleet.books.orders
                await asyncio.sleep(FROZEN_SECONDS)
                assert sum(watchman.seen) == 0, "nobody acts without a lease"
                assert fleet.books.orders == orders
                now = fleet.served()
                assert all(before[e] - now[e] <= {f"{NAMESPACE}/a-4"} for e in before), (
                    "what was served is served, but for what was deleted"
                )
                assert fleet.books.unloads <= unloads + REPLICAS

            await fleet.settled(SECONDS)
            await until(lambda: not fleet.leftovers())
            await until(lambda: sum(watchman.seen) == 1)
            await fleet.apply("a-5", 2)
            await fleet.delete("a-6")
            await fleet.settled(SECONDS)
            await until(lambda: not fleet.leftovers())
            assert fleet.books.overruns == []
            assert watchman.longest < LATE
            assert not watching.done()
            watching.cancel()
            assert all(each.process.running for each in operators)
            assert all("Traceback" not in each.process.log.read_text() for each in operators)
