"""The operator with thirty simulated engines and a hundred adapters: what it writes, and that it
fills no engine above what it holds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import httpx
from localstack import LocalStack
from simulated_engine import EXTENT_BYTES, Behaviour
from simulated_fleet import SimulatedFleet

if TYPE_CHECKING:
    from pathlib import Path

    from localcluster import LocalCluster
    from localstack import Operator

ENGINES, ADAPTERS, REPLICAS = 30, 100, 3
SECONDS = 120
"""Bound on each step; they take a few."""


async def passes(operator: Operator, wanted: int) -> None:
    """Return when the operator has ended as many passes over adapters."""
    line = 'lorafleet_operator_reconcile_duration_seconds_count{kind="LoRAAdapter"} '
    await asyncio.to_thread(operator.wait, SECONDS)
    async with asyncio.timeout(SECONDS), httpx.AsyncClient(timeout=SECONDS) as client:
        found = 0.0
        while found < wanted:
            await asyncio.sleep(0.2)
            text = (await client.get(operator.metrics_url)).text
            found = float(text.partition(line)[2].partition("\n")[0] or 0)


async def test_a_fleet_is_filled_changed_and_hit_with_few_writes_and_within_what_engines_hold(
    cluster: LocalCluster, namespace: str, tmp_path: Path
) -> None:
    # 10 adapters for each engine on average: one that is full must stay so.
    behaviour = Behaviour(arena_bytes=13 * EXTENT_BYTES)
    fleet = SimulatedFleet(
        cluster.kubeconfig, tmp_path, namespace, engines=ENGINES, behaviour=behaviour
    )
    with LocalStack(tmp_path) as stack:
        async with fleet:
            names = [f"a-{number}" for number in range(ADAPTERS)]
            await asyncio.gather(*(fleet.apply(name) for name in names))
            start = await fleet.writes()
            settings = {
                "LORAFLEET_NAMESPACES": namespace,
                "LORAFLEET_VOLUME_ROOT": str(fleet.root),
                "LORAFLEET_RESYNC_SECONDS": "1",
            }
            operator = stack.start_operator(cluster.kubeconfig, **settings)
            await fleet.settled(SECONDS)
            cold = await fleet.quiet() - start
            assert cold["adapter status"] == ADAPTERS, "one status each"
            assert cold["events"] <= ADAPTERS + 2, "and one Event; the pool has two"
            assert cold["finalizers"] <= ADAPTERS + 1 + ADAPTERS // 10

            changed = names[:10]
            await asyncio.gather(*(fleet.apply(name, 2) for name in changed))
            await fleet.settled(SECONDS)
            now = await fleet.quiet()
            update = now - start - cold
            assert update["adapter status"] <= 2 * len(changed)
            assert update["finalizers"] == 0

            lost = [f"engine-{number}" for number in range(3)]
            there = {e.adapter for name in lost for e in fleet.engines[name].loaded.values()}
            await fleet.lose_engines(lost)
            await fleet.settled(SECONDS)
            hit = await fleet.quiet() - now
            assert hit["adapter status"] <= 2 * len(there)
            assert hit["adapter status"] + hit["events"] <= 3 * len(there) + 2

            # Another operator begins with a pass over everything, and each second there is one more.
            again, orders = await fleet.writes(), fleet.books.orders
            operator.process.kill()
            operator = stack.start_operator(cluster.kubeconfig, **settings)
            await passes(operator, 3 * ADAPTERS)
            assert await fleet.writes() == again, "a pass that finds nothing new writes nothing"
            assert fleet.books.orders == orders, "and orders nothing"
            assert fleet.books.overruns == []
            assert fleet.books.stagings <= REPLICAS * (ADAPTERS + len(changed) + len(there))
            assert max(e.used_bytes for e in fleet.engines.values()) <= behaviour.arena_bytes
            for name in names:
                await fleet.delete(name)
            async with asyncio.timeout(SECONDS):
                while any(engine.loaded or engine.staged for engine in fleet.engines.values()):
                    await asyncio.sleep(0.1)
