"""A node that hangs: its pods stay, their connections too, and nobody answers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gated_fleet import GatedFleet
from localstack import LocalStack
from simulated_engine import Behaviour

if TYPE_CHECKING:
    from pathlib import Path

    from localcluster import LocalCluster


async def test_what_a_silent_node_had_moves_after_the_grace_and_what_it_has_too_much_goes_after(
    cluster: LocalCluster, namespace: str, tmp_path: Path
) -> None:
    made = GatedFleet(cluster.kubeconfig, tmp_path, namespace, replicas=2, behaviour=Behaviour())
    with LocalStack(tmp_path) as stack:
        async with made:
            for number in range(3):
                await made.add(f"engine-{number}", node=f"node-{number}")
            await asyncio.gather(*(made.apply(f"a-{number}") for number in range(6)))
            stack.start_operator(
                cluster.kubeconfig,
                LORAFLEET_NAMESPACES=namespace,
                LORAFLEET_VOLUME_ROOT=str(made.root),
                LORAFLEET_HEARTBEAT_SECONDS="1",
                LORAFLEET_ENGINE_GRACE_SECONDS="5",
            )
            await made.settled(60)
            lost, others = made.served_by("engine-0"), {"engine-1", "engine-2"}
            assert lost
            stagings = made.books.stagings

            made.engines["engine-0"].freeze()
            await made.settled_on(others)
            async with asyncio.timeout(60):
                while not await made.trouble_of("engine-0"):
                    await asyncio.sleep(0.1)
            assert made.books.stagings == stagings + len(lost), "each once, by who lacked it"
            # Nobody waits for the silent one: changes go through.
            await made.apply("a-0", 2)
            await made.apply("new")
            await made.settled_on(others)

            made.engines["engine-0"].thaw()
            await made.until(lambda: not made.served_by("engine-0"))
            async with asyncio.timeout(60):
                while await made.trouble_of("engine-0"):
                    await asyncio.sleep(0.1)
            await made.settled_on(others)
