"""A revision that all engines serve or none: whole passes against real sidecars and fake engines.

Every test asserts from the engines themselves: what each name came to mean, in that order.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from lorafleet_operator.reconcile import reconcile
from operator_rig import ready
from rollout_scene import (
    ATOMIC,
    NEXT,
    OLD,
    Scene,
    back,
    decided_while,
    decided_without,
    never_back,
    scene,
    silence,
    started,
    waited_for,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from lorafleet_operator.api.v1alpha1 import LoRAAdapter
    from lorafleet_operator.report import Report


class Interrupted(Exception):
    """The operator is gone here."""


async def interrupted(
    op: Scene, made: LoRAAdapter, at: Callable[[Report], Awaitable[bool]]
) -> LoRAAdapter:
    """Run a pass that ends where `at` says so of a status that is about to be written.

    Returns the adapter with what had been written by then.
    """
    written = made

    async def announce(said: Report) -> None:
        nonlocal written
        if await at(said):
            raise Interrupted
        written = made.model_copy(update={"status": said.status})

    with pytest.raises(Interrupted):
        await reconcile(made, "2026-01-01T00:00:00Z", op.fleet, announce)
    op.forget_sources()
    return written


async def test_no_name_moves_before_the_decision_is_written_and_all_move_after_it(
    volume: Path, tmp_path: Path
) -> None:
    async with scene(volume, tmp_path) as op:
        made = await op.begin(rollout=ATOMIC)
        assert made.status.rollout is None
        op.update()

        async def all_old() -> None:
            assert await op.served() == ["old"] * 3
            assert [len(rig.engine.revisions) for rig in op.rigs] == [2, 2, 2]

        made = await decided_while(op, made, all_old)
        assert await op.served() == ["new"] * 3
        assert op.moves() == [["old", "new"]] * 3
        assert ready(made)[:2] == ("True", "Ready")
        assert made.status.rollout is None
        assert made.status.stable is not None
        assert made.status.stable.digest == made.status.digest == op.new
        assert made.status.history == [op.old]


async def test_a_decision_that_could_not_be_written_moves_no_name(
    volume: Path, tmp_path: Path
) -> None:
    async with scene(volume, tmp_path) as op:
        made = await op.begin(rollout=ATOMIC)
        op.update()

        async def decision(said: Report) -> bool:
            return said.status.decided is not None

        made = await interrupted(op, made, decision)
        assert await op.served() == ["old"] * 3
        made = await op.until(made, "Ready")
        assert op.moves() == [["old", "new"]] * 3


async def test_an_engine_that_does_not_answer_is_waited_for_by_name(
    volume: Path, tmp_path: Path
) -> None:
    async with scene(volume, tmp_path) as op:
        made = await op.begin(rollout=ATOMIC)
        await silence(op, 1)
        op.update()
        for _ in range(3):
            made = await op.apply(made)
            assert await op.served() == ["old", "old", "old"]
        assert made.status.rollout is not None
        assert made.status.rollout.waiting_for == "engine-1"
        assert made.status.decided is None
        assert made.status.digest == op.old
        status, reason, message = ready(made)
        assert (status, reason) == ("False", "EngineUnreachable")
        assert message.startswith("engine engine-1: ")
        assert "no name moves before it answers" in message
        await back(op, 1)
        made = await op.until(made, "Ready")
        assert await op.served() == ["new"] * 3
        never_back(op)


async def test_an_engine_that_dies_after_the_decision_never_serves_the_old_revision_again(
    volume: Path, tmp_path: Path
) -> None:
    async with scene(volume, tmp_path) as op:
        made = await decided_without(op, 2)
        assert (await op.served())[:2] == ["new", "new"]
        assert made.status.rollout is None
        assert made.status.decided is not None
        assert made.status.decided.waiting_for == "engine-2"
        assert made.status.decided.engines == ["engine-0", "engine-1", "engine-2"]
        assert made.status.stable is not None
        assert made.status.stable.digest == op.new

        op.forget_sources()  # another operator
        await back(op, 2)
        assert await op.served() == ["new", "new", ""], "it waits to be told which"
        made = await op.until(made, "Ready")
        assert op.moves() == [["old", "new"]] * 3
        assert made.status.decided is None


async def test_an_engine_that_restarts_before_the_decision_is_given_the_old_revision_back(
    volume: Path, tmp_path: Path
) -> None:
    async with scene(volume, tmp_path) as op:
        made = await waited_for(op, 1)
        await silence(op, 0)
        await back(op, 0)
        assert await op.served() == ["", "old", "old"], "it cannot know what was decided"
        waiting = asyncio.create_task(op.rigs[0].answer("team-a/sql"))
        made = await op.apply(made)
        assert await waiting == op.old[7:19], "requests waited for it"
        assert await op.served() == ["old", "old", "old"]
        await back(op, 1)
        made = await op.until(made, "Ready")
        assert await op.served() == ["new"] * 3
        never_back(op)


async def test_newer_content_takes_the_place_of_what_is_not_decided_yet(
    volume: Path, tmp_path: Path
) -> None:
    async with scene(volume, tmp_path) as op:
        made = await waited_for(op, 1)
        op.update(NEXT)
        made = await op.apply(made)
        assert made.status.rollout is not None
        newest = made.status.rollout.digest
        assert newest not in (op.old, op.new, "")
        await back(op, 1)
        made = await op.until(made, "Ready")
        assert op.moves() == [["old", newest]] * 3


async def test_what_is_decided_is_finished_before_newer_content_begins(
    volume: Path, tmp_path: Path
) -> None:
    async with scene(volume, tmp_path) as op:
        made = await decided_without(op, 2)
        op.update(NEXT)
        for _ in range(2):
            made = await op.apply(made)
            assert (await op.served())[:2] == ["new", "new"]
            assert made.status.decided is not None
            assert made.status.decided.digest == op.new
            assert made.status.decided.waiting_for == "engine-2"
        await back(op, 2)
        made = await op.until(made, "Ready")
        newest = made.status.digest
        assert newest not in (op.old, op.new)
        assert op.moves() == [["old", "new", newest]] * 3


async def test_a_first_revision_is_published_everywhere_at_once_too(
    volume: Path, tmp_path: Path
) -> None:
    async with scene(volume, tmp_path) as op:
        await op.refresh()
        await silence(op, 1)
        made = op.adapter("sql", OLD, rollout=ATOMIC)
        for _ in range(2):
            made = await op.apply(made)
            assert await op.served() == ["", "", ""]
        assert made.status.rollout is not None
        assert made.status.rollout.waiting_for == "engine-1"
        await started(op, 1)
        made = await op.until(made, "Ready")
        assert [len(moves) for moves in op.moves()] == [1, 1, 1]


async def test_a_way_back_that_a_person_names_goes_everywhere_at_once_too(
    volume: Path, tmp_path: Path
) -> None:
    async with scene(volume, tmp_path) as op:
        made = await op.begin(rollout=ATOMIC)
        op.update()
        made = await op.until(made, "Ready")
        await silence(op, 1)
        made = op.spec(made, revision=op.old)
        made = await op.apply(made)
        assert (await op.served())[::2] == ["new", "new"]
        await back(op, 1)
        made = await op.until(made, "Ready")
        assert op.moves() == [["old", "new", "old"]] * 3


async def test_atomic_that_is_taken_out_of_the_spec_ends_the_wait(
    volume: Path, tmp_path: Path
) -> None:
    async with scene(volume, tmp_path) as op:
        made = await decided_without(op, 2)
        made = op.spec(made, rollout={})
        await back(op, 2)
        made = await op.until(made, "Ready")
        assert op.moves() == [["old", "new"]] * 3


async def test_an_engine_without_the_plugin_takes_part(volume: Path, tmp_path: Path) -> None:
    async with scene(volume, tmp_path) as op:
        stock = op.rigs[2]
        stock.engine.behaviour.plugin = False
        await silence(op, 2)
        await started(op, 2)
        made = await waited_for(op, 1)
        await silence(op, 2)
        await started(op, 2)
        assert stock.engine.stock == {}, "it cannot know what was decided"
        made = await op.apply(made)
        assert await stock.answer("team-a/sql") == op.old[7:19]
        await back(op, 1)
        made = await op.until(made, "Ready")
        assert await stock.answer("team-a/sql") != op.old[7:19]  # the new one, in its own dtype
        assert op.moves()[:2] == [["old", "new"]] * 2


async def test_an_engine_that_is_silent_for_longer_than_the_grace_is_waited_for_no_more(
    volume: Path, tmp_path: Path
) -> None:
    async with scene(volume, tmp_path) as op:
        made = await waited_for(op, 1)
        assert await op.served() == ["old"] * 3
        op.fleet.settings = replace(op.fleet.settings, engine_grace_seconds=0.0)
        made = await op.apply(made)
        assert (await op.served())[::2] == ["new", "new"]
        await back(op, 1)
        made = await op.until(made, "Ready")
        assert made.status.ready_engines == 3
        assert op.moves() == [["old", "new"]] * 3
