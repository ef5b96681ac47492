"""Updates, trials and rollbacks: whole passes against real sidecars and fake engines."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from lorafleet_operator import metrics
from operator_rig import ready
from rollout_scene import EXTENT, NEW, OLD, scene
from waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from sidecar_rig import Rig


async def test_one_engine_at_a_time_holds_two_revisions_when_the_surge_is_one(
    volume: Path, tmp_path: Path
) -> None:
    async with scene(volume, tmp_path) as op:
        made = await op.begin(rollout={"maxSurge": 1})
        op.update()
        seen = []
        for _ in range(8):
            made = await op.apply(made)
            seen.append((await op.served()).count("new"))
            assert made.status.updated_engines == seen[-1]
            assert all(await op.served())
            await until(lambda: all(len(rig.engine.revisions) == 1 for rig in op.rigs))
            await op.refresh()
        assert seen[:3] == [1, 2, 3]
        assert ready(made)[:2] == ("True", "Ready")
        assert made.status.digest == op.new
        assert made.status.history == [op.old]


async def test_an_arena_without_room_for_two_unloads_the_old_one_first_engine_by_engine(
    volume: Path, tmp_path: Path
) -> None:
    async with scene(volume, tmp_path, arena_bytes=EXTENT) as op:
        made = await op.begin()
        op.update()
        made = await op.apply(made)
        assert ready(made)[:2] == ("False", "StagingFull")
        assert await op.served() == ["old"] * 3
        made = op.spec(made, rollout={"maxUnavailable": 1})
        away = []
        for _ in range(12):
            made = await op.apply(made)
            away.append((await op.served()).count(""))
            if ready(made)[1] == "Ready":
                break
        assert ready(made)[:2] == ("True", "Ready")
        assert await op.served() == ["new"] * 3
        assert max(away) == 1


async def test_no_surge_at_all_replaces_engine_by_engine(volume: Path, tmp_path: Path) -> None:
    async with scene(volume, tmp_path) as op:
        made = await op.begin(rollout={"maxSurge": 0, "maxUnavailable": 2})
        op.update()
        away = []
        for _ in range(8):
            made = await op.apply(made)
            away.append((await op.served()).count(""))
            assert all(len(rig.engine.revisions) <= 1 for rig in op.rigs)
        assert away[0] == 1  # before it has proved itself one engine risks it
        assert max(away) == 2
        assert ready(made)[:2] == ("True", "Ready")


CANARY = {"canary": {"engines": 1, "holdSeconds": 60, "maxErrorRate": "10%"}}


async def test_a_canary_is_promoted_after_its_time_also_by_another_operator(
    volume: Path, tmp_path: Path
) -> None:
    async with scene(volume, tmp_path) as op:
        made = await op.begin(rollout=CANARY)
        op.update()
        made = await op.until(made, "Canary")
        assert sorted(await op.served()) == ["new", "old", "old"]
        trial = made.status.canary
        assert trial is not None
        assert (trial.digest, trial.engines, trial.promoted) == (op.new, 1, False)
        assert made.status.digest == op.old
        assert (made.status.ready_engines, made.status.updated_engines) == (3, 1)
        assert [entry.canary for entry in made.status.engines].count(True) == 1
        tried = next(
            rig for rig, name in zip(op.rigs, await op.served(), strict=True) if name == "new"
        )
        for _ in range(4):
            await tried.answer("team-a/sql")
        await op.refresh()
        made = await op.apply(made)
        assert made.status.canary is not None
        assert (made.status.canary.requests, made.status.canary.errors) == (4, 0)

        op.forget_sources()  # a restart of the operator: the time goes on in the status
        made = await op.apply(made)
        assert made.status.canary is not None
        assert made.status.canary.since == trial.since
        assert sorted(await op.served()) == ["new", "old", "old"]
        made = await op.until(op.later(made, 61), "Ready")
        assert await op.served() == ["new"] * 3
        assert made.status.canary is None
        assert made.status.stable is not None
        assert made.status.stable.digest == made.status.digest == op.new
        assert made.status.history == [op.old]


async def test_a_canary_whose_requests_fail_is_rolled_back_and_not_tried_again(
    volume: Path, tmp_path: Path
) -> None:
    async with scene(volume, tmp_path) as op:
        made = await op.begin(rollout=CANARY)
        for rig in op.rigs:
            rig.engine.behaviour.failing.add(op.new)
        op.update()
        made = await op.until(made, "Canary")
        tried = next(
            rig for rig, name in zip(op.rigs, await op.served(), strict=True) if name == "new"
        )
        await failing(tried, 2)
        made = await op.until(made, "RolledBack")
        await until(lambda: all(len(rig.engine.revisions) == 1 for rig in op.rigs))
        assert await op.served() == ["old"] * 3
        made = await op.apply(made)
        status, reason, message = ready(made)
        assert (status, reason) == ("False", "RolledBack")
        assert "2 of 2 requests failed" in message
        given_up = made.status.rolled_back
        assert given_up is not None
        assert (given_up.digest, given_up.reason) == (op.new, "ErrorRate")
        assert made.status.canary is None
        assert made.status.digest == op.old
        assert (made.status.ready_engines, made.status.updated_engines) == (3, 0)
        assert op.new not in made.status.history
        loads = [len(rig.engine.loads) for rig in op.rigs]
        op.forget_sources()
        for _ in range(3):
            made = await op.apply(made)
        assert [len(rig.engine.loads) for rig in op.rigs] == loads
        assert ready(made)[1] == "RolledBack"

        for rig in op.rigs:  # what was wrong is mended, and the spec asks again
            rig.engine.behaviour.failing.clear()
        made = await op.until(op.spec(made, priority=1), "Canary")
        made = await op.until(op.later(made, 61), "Ready")
        assert made.status.rolled_back is None
        assert await op.served() == ["new"] * 3


async def test_a_revision_that_answers_the_probe_wrongly_is_served_to_nobody(
    volume: Path, tmp_path: Path
) -> None:
    async with scene(volume, tmp_path) as op:
        made = await op.begin()
        probe = {"prompt": "who are you?", "expect": op.old[7:19]}
        made = await op.apply(op.spec(made, rollout={"canary": {"engines": 2, "probe": probe}}))
        op.update()
        made = await op.until(made, "RolledBack")
        await until(lambda: all(len(rig.engine.revisions) == 1 for rig in op.rigs))
        assert await op.served() == ["old"] * 3
        assert made.status.rolled_back is not None
        assert made.status.rolled_back.reason == "EngineRejected"
        assert f"was answered with '{op.new[7:19]}'" in made.status.rolled_back.message


async def test_an_engine_that_refuses_after_others_moved_takes_the_update_back_everywhere(
    volume: Path, tmp_path: Path
) -> None:
    async with scene(volume, tmp_path) as op:
        made = await op.begin(rollout={"maxSurge": 1})
        op.rigs[2].engine.behaviour.wrong[op.new] = "lora_A is not what was staged"
        op.update()
        made = await op.until(made, "RolledBack")
        for _ in range(3):
            made = await op.apply(made)
            assert all(await op.served())
            await until(lambda: all(len(rig.engine.revisions) == 1 for rig in op.rigs))
            await op.refresh()
        assert await op.served() == ["old"] * 3
        assert "engine engine-2: " in ready(made)[2]


async def test_a_named_revision_is_served_without_a_byte_and_without_the_source(
    volume: Path, tmp_path: Path
) -> None:
    async with scene(volume, tmp_path) as op:
        made = await op.begin(revisionHistoryLimit=1)
        op.update()
        made = await op.until(made, "Ready")
        assert made.status.history == [op.old]
        sent = metrics.TRANSFER_BYTES._value.get()
        (op.root / "team-a" / "claim" / "sql").rename(op.root / "away")
        made = await op.until(op.spec(made, revision=op.old), "Ready")
        assert await op.served() == ["old"] * 3
        assert metrics.TRANSFER_BYTES._value.get() == sent
        assert made.status.digest == op.old
        assert made.status.history == [op.new]

        unknown = "sha256:" + "0" * 64
        wrong = await op.apply(op.spec(made, revision=unknown))
        status, reason, message = ready(wrong)
        assert (status, reason) == ("False", "RevisionNotStaged")
        assert message.startswith(f"{unknown} is no revision of this adapter; there are sha256:")
        assert await op.served() == ["old"] * 3

        (op.root / "away").rename(op.root / "team-a" / "claim" / "sql")
        made = await op.until(op.spec(wrong, revision=None), "Ready")
        assert await op.served() == ["new"] * 3
        assert metrics.TRANSFER_BYTES._value.get() == sent


async def test_so_many_revisions_stay_staged_as_the_spec_says_and_others_make_room_first(
    volume: Path, tmp_path: Path
) -> None:
    async with scene(volume, tmp_path, engines=1) as op:
        made = await op.begin(revisionHistoryLimit=1)
        (rig,) = op.rigs
        for case in (NEW, "d11-rslora", "d09-rank-6"):
            op.update(case)
            made = await op.until(made, "Ready")
        staged = {each.digest for each in rig.sidecar.store.revisions()}
        assert len(made.status.history) == 1
        assert staged == {made.status.digest, *made.status.history}
        made = await op.apply(op.spec(made, revisionHistoryLimit=0))
        assert [each.digest for each in rig.sidecar.store.revisions()] == [made.status.digest]


async def test_requests_on_an_old_revision_are_counted_and_aborted_when_their_time_is_over(
    volume: Path, tmp_path: Path
) -> None:
    async with scene(volume, tmp_path, engines=1) as op:
        made = await op.begin(drainTimeoutSeconds=3600)
        (rig,) = op.rigs
        running = await rig.held_request("team-a/sql")
        op.update()
        made = await op.until(made, "Ready")
        (draining,) = made.status.draining
        assert (draining.digest, draining.engines, draining.in_flight) == (op.old, 1, 1)
        rig.engine.release()
        assert await running == op.old[7:19]

        made = await op.until(op.spec(made, drainTimeoutSeconds=1), "Ready")
        running = await rig.held_request("team-a/sql")
        op.update(OLD)
        made = await op.until(made, "Ready")
        assert await running == ""  # what there was of the answer, with the reason `abort`
        await until(lambda: len(rig.engine.revisions) == 1)
        await op.refresh()
        made = await op.apply(made)
        assert made.status.draining == []


@pytest.mark.parametrize("engines", [1, 2])
async def test_a_canary_of_every_engine_is_watched_all_the_same(
    volume: Path, tmp_path: Path, engines: int
) -> None:
    async with scene(volume, tmp_path, engines) as op:
        made = await op.begin(rollout={"canary": {"engines": "100%"}})
        for rig in op.rigs:
            rig.engine.behaviour.failing.add(op.new)
        op.update()
        made = await op.until(made, "Canary")
        assert await op.served() == ["new"] * engines
        await failing(op.rigs[0], 12)
        made = await op.until(made, "RolledBack")
        made = await op.apply(made)
        assert await op.served() == ["old"] * engines


async def failing(rig: Rig, count: int) -> None:
    """Send requests of which each fails."""
    for _ in range(count):
        answers = await asyncio.gather(rig.answer("team-a/sql"), return_exceptions=True)
        assert isinstance(answers[0], Exception)
