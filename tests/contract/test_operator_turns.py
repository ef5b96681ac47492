"""What passes wait for, and in which order."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from operator_rig import operator, ready
from sidecar_rig import Rig

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_pass_waits_for_its_source_before_it_takes_a_place_among_the_transfers(
    volume: Path, tmp_path: Path
) -> None:
    """In the other order passes of the one kind and the other wait for each other for ever."""
    async with Rig(volume / "a", pod_uid="u0") as a, operator(tmp_path, a) as op:
        made = op.adapter("sql")
        paused = {"lorafleet.dev/paused": "true"}
        metadata = made.metadata.model_copy(update={"annotations": paused})
        await op.apply(made.model_copy(update={"metadata": metadata}))  # knows the source now
        taken = op.fleet.settings.sources
        for _ in range(taken):
            await op.fleet.sources.take("others")
        work = asyncio.create_task(op.apply(made))
        await asyncio.sleep(0.2)
        assert not work.done()
        for _ in range(op.fleet.settings.transfers):
            async with asyncio.timeout(10):
                await op.fleet.transfers.take("others")
        for _ in range(op.fleet.settings.transfers):
            op.fleet.transfers.give_back()
        for _ in range(taken):
            op.fleet.sources.give_back()
        assert ready(await work)[0] == "True"
