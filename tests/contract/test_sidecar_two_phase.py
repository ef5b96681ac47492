"""Loads in two phases: what a sidecar does by itself while it cannot know what was decided."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc.aio
import pytest
from sidecar_rig import Rig
from waiting import until

if TYPE_CHECKING:
    from pathlib import Path

NAME = "team-a/sql"


async def prepared(rig: Rig) -> tuple[str, str]:
    """Serve one revision and load another in the first of two phases; return both digests."""
    old, new = rig.put(1), rig.put(2)
    await rig.load(old)
    await rig.load(new, publish=False, two_phase=True)
    assert await rig.answer(NAME) == old[7:19], "nothing changes for clients meanwhile"
    return old, new


async def restarted(rig: Rig, *digests: str) -> None:
    """Restart vLLM, and wait until these are loaded again."""
    await rig.engine.kill()
    await until(lambda: not rig.sidecar.agent.observed.usable)
    await rig.engine.start()
    await until(lambda: {r.digest for r in rig.engine.revisions.values()} >= set(digests))
    async with rig.sidecar.agent.turn:
        pass


@pytest.mark.parametrize("sidecar_too", [False, True])
async def test_a_restart_between_the_phases_serves_nothing_until_it_is_told_what(
    volume: Path, sidecar_too: bool
) -> None:
    async with Rig(volume) as rig:
        old, new = await prepared(rig)
        if sidecar_too:
            await rig.stop_sidecar()
            await rig.engine.kill()
            await rig.engine.start()
            await rig.start_sidecar()
            await until(lambda: len(rig.engine.revisions) == 2)
        else:
            await restarted(rig, old, new)
        assert rig.engine.served == {}
        moved = len(rig.engine.moves)
        await rig.load(new, two_phase=True)
        assert await rig.answer(NAME) == new[7:19]
        assert [digest for _, digest in rig.engine.moves[moved:]] == [new]
        await restarted(rig, new)
        await until(lambda: rig.engine.served)
        assert await rig.answer(NAME) == new[7:19], "nothing is in doubt any more"


async def test_the_old_revision_comes_back_when_that_is_what_was_decided(volume: Path) -> None:
    async with Rig(volume) as rig:
        old, new = await prepared(rig)
        await restarted(rig, old, new)
        await rig.load(old)
        assert await rig.answer(NAME) == old[7:19]
        await until(lambda: len(rig.engine.revisions) == 1)
        await restarted(rig, old)
        await until(lambda: rig.engine.served)
        assert await rig.answer(NAME) == old[7:19]


async def test_the_first_phase_asks_the_revision_and_the_second_has_no_way_back(
    volume: Path,
) -> None:
    async with Rig(volume) as rig:
        _, new = await prepared(rig)
        mute = rig.put(3)
        rig.engine.behaviour.mute.add(mute)
        with pytest.raises(grpc.aio.AioRpcError, match="EngineCore encountered an issue"):
            await rig.load(mute, publish=False, two_phase=True)
        await rig.load(new, publish=False, two_phase=True)
        rig.engine.behaviour.mute.add(new)  # it falls ill between the phases
        with pytest.raises(grpc.aio.AioRpcError, match="EngineCore encountered an issue"):
            await rig.load(new, two_phase=True)
        assert rig.engine.served == {}
        rig.engine.behaviour.mute.clear()
        await rig.load(new, two_phase=True)
        assert await rig.answer(NAME) == new[7:19]
        assert len({digest for _, digest in rig.engine.moves}) == 2


async def test_what_sleeps_until_a_request_comes_goes_on_serving_between_the_phases(
    volume: Path,
) -> None:
    async with Rig(volume) as rig:
        old, new = rig.put(1), rig.put(2)
        await rig.load(old, residency="onDemand")
        await rig.load(new, residency="onDemand", publish=False, two_phase=True)
        assert await rig.answer(NAME) == old[7:19]
        await rig.load(new, residency="onDemand", two_phase=True)
        assert await rig.answer(NAME) == new[7:19]
