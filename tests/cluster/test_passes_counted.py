"""How many passes there are: who is served as wanted has none for what happens to others, or for what
it has ordered itself."""

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

ADAPTERS = 20
SECONDS = 120
"""Bound on each step; they take a few."""
_LINE = 'lorafleet_operator_reconcile_duration_seconds_count{kind="LoRAAdapter"} '


async def passes(operator: Operator, fleet: SimulatedFleet) -> int:
    """Return the passes over adapters until now, once nothing is written any more."""
    await fleet.quiet()
    async with httpx.AsyncClient(timeout=SECONDS) as client:
        text = (await client.get(operator.metrics_url)).text
    return int(float(text.partition(_LINE)[2].partition("\n")[0]))


async def test_an_adapter_that_comes_up_is_one_pass_and_none_of_those_beside_it(
    cluster: LocalCluster, namespace: str, tmp_path: Path
) -> None:
    behaviour = Behaviour(arena_bytes=2 * ADAPTERS * EXTENT_BYTES)
    fleet = SimulatedFleet(
        cluster.kubeconfig, tmp_path, namespace, engines=3, behaviour=behaviour, poll_seconds=0
    )
    with LocalStack(tmp_path) as stack:
        async with fleet:
            await fleet.apply("first")
            operator = stack.start_operator(
                cluster.kubeconfig,
                LORAFLEET_NAMESPACES=namespace,
                LORAFLEET_VOLUME_ROOT=str(fleet.root),
                LORAFLEET_RESYNC_SECONDS="3600",
            )
            await fleet.settled(SECONDS)
            start = await passes(operator, fleet)
            await asyncio.gather(*(fleet.apply(f"a-{number}") for number in range(ADAPTERS)))
            await fleet.settled(SECONDS)
            before = await passes(operator, fleet)
            assert before - start == ADAPTERS, "one each, though one of them plans for several"
            for number in range(3):
                await fleet.apply(f"b-{number}")
                await fleet.settled(SECONDS)
            assert await passes(operator, fleet) - before == 3, "every engine has all of them"
            await fleet.apply("a-0", 2)
            await fleet.settled(SECONDS)
            changed = await passes(operator, fleet) - before - 3
            assert changed <= 3, "an update is the same, and what it left behind"
