"""All engines or none, where an engine refuses or has no room, or the source goes bad."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from operator_rig import ready
from rollout_scene import (
    ATOMIC,
    EXTENT,
    NEXT,
    back,
    decided_without,
    never_back,
    scene,
    silence,
    started,
    waited_for,
)
from waiting import until

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("how", ["load", "proof", "answer"])
async def test_one_engine_that_refuses_takes_the_new_revision_out_of_all(
    volume: Path, tmp_path: Path, how: str
) -> None:
    async with scene(volume, tmp_path) as op:
        made = await op.begin(rollout=ATOMIC)
        behaviour = op.rigs[2].engine.behaviour
        if how == "load":
            behaviour.refuse[op.new] = "no kernel for this"
        elif how == "proof":
            behaviour.wrong[op.new] = "lora_A is not what was staged"
        else:
            behaviour.mute.add(op.new)
        op.update()
        made = await op.until(made, "RolledBack")
        await until(lambda: all(len(rig.engine.revisions) == 1 for rig in op.rigs))
        assert {tuple(moves) for moves in op.moves()} == {("old",)}
        assert made.status.rolled_back is not None
        assert (made.status.rolled_back.digest, made.status.rolled_back.reason) == (
            op.new,
            "EngineRejected",
        )
        assert "engine engine-2: " in made.status.rolled_back.message
        assert made.status.rollout is None
        loads = [len(rig.engine.loads) for rig in op.rigs]
        op.forget_sources()
        await op.refresh()
        made = await op.apply(made)
        assert [len(rig.engine.loads) for rig in op.rigs] == loads

        behaviour.refuse.clear()  # mended, and the spec asks again
        behaviour.wrong.clear()
        behaviour.mute.clear()
        made = await op.until(op.spec(made, priority=1), "Ready")
        assert await op.served() == ["new"] * 3
        never_back(op)


@pytest.mark.parametrize("rollout", [ATOMIC, {}])
async def test_what_an_engine_has_refused_and_not_unloaded_yet_moves_no_name(
    volume: Path, tmp_path: Path, rollout: dict[str, Any]
) -> None:
    """Sidecars unload it with their next look: here that does not come before the next pass."""
    probe = {"canary": {"engines": 3, "probe": {"prompt": "x"}}}
    async with scene(volume, tmp_path, refresh_seconds=600) as op:
        made = await op.begin(rollout=rollout or probe)
        op.rigs[2].engine.behaviour.mute.add(op.new)
        op.update()
        await op.until(made, "RolledBack")
        assert {tuple(moves) for moves in op.moves()} == {("old",)}


async def test_an_engine_without_room_keeps_the_old_revision_everywhere(
    volume: Path, tmp_path: Path
) -> None:
    async with scene(volume, tmp_path) as op:
        made = await op.begin(rollout=ATOMIC)
        room = op.rigs[1].sidecar.store.usage().limit
        taken = [op.rigs[1].put(seed, "team-b/other") for seed in range(room // EXTENT - 1)]
        for number, digest in enumerate(taken):
            await op.rigs[1].load(digest, f"team-b/{number}", residency="host", publish=False)
        op.update()
        await op.refresh()
        made = await op.apply(made)
        made = await op.apply(made)
        assert ready(made)[:2] == ("False", "StagingFull")
        assert {tuple(moves) for moves in op.moves()} == {("old",)}
        for number in range(len(taken)):
            await op.rigs[1].unload(f"team-b/{number}", adapter=f"team-b/{number}")
        await op.refresh()
        made = await op.until(made, "Ready")
        assert op.moves() == [["old", "new"]] * 3


async def test_what_is_decided_is_carried_out_though_the_source_has_gone_bad(
    volume: Path, tmp_path: Path
) -> None:
    async with scene(volume, tmp_path) as op:
        made = await decided_without(op, 2)
        op.update("d48-no-tensors")
        await back(op, 2)
        made = await op.apply(made)
        assert op.moves() == [["old", "new"]] * 3
        assert ready(made)[1] == "InvalidAdapter"


async def test_what_an_engine_cannot_take_after_the_decision_does_not_hold_up_what_follows(
    volume: Path, tmp_path: Path
) -> None:
    async with scene(volume, tmp_path) as op:
        made = await decided_without(op, 2)
        op.rigs[2].engine.behaviour.wrong[op.new] = "lora_A is not what was staged"
        await started(op, 2)
        for _ in range(4):
            made = await op.apply(made)
        assert made.status.rolled_back is None, "there is no way back"
        assert await op.served() == ["new", "new", ""]
        op.put("sql", NEXT)
        op.fleet.memory.drop_look(made.metadata.uid)
        made = await op.until(made, "Ready")
        assert [moves[-1] for moves in op.moves()] == [made.status.digest] * 3
        never_back(op)


async def test_an_engine_in_doubt_gets_the_old_revision_back_though_the_source_has_gone_bad(
    volume: Path, tmp_path: Path
) -> None:
    async with scene(volume, tmp_path) as op:
        made = await waited_for(op, 1)
        op.update("d48-no-tensors")
        await silence(op, 0)
        await back(op, 0)
        assert await op.served() == ["", "old", "old"]
        made = await op.apply(made)
        assert await op.served() == ["old"] * 3
        assert ready(made)[1] == "InvalidAdapter"
