"""Trainers and operators that are killed in the middle of a push: what was served stays, what came is
used, and nothing is left over."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import grpc.aio
import pytest
from push_rig import Scene, scene
from pushing import Content

__all__ = ["scene"]
TESTS = Path(__file__).parents[1]
OLD, NEW = Content.of(1, 2), Content.of(3, 4)
TWO_REVISIONS = {"revisions": 6, "data": 2}

STEPS = {  # what the next push has to bring, and whether the operator named the revision before it died
    "push.piece": ([0, 1], False),
    "push.brought": ([0, 1], False),
    "push.described": ([0, 1], False),
    "push.kept": ([], False),
    "push.named": ([], True),
}


@pytest.mark.parametrize("step", STEPS)
async def test_an_operator_that_is_killed_goes_on_as_if_it_had_not_been(
    scene: Scene, step: str
) -> None:
    asked, named = STEPS[step]
    trainer = scene.trainer()
    old = await trainer.push(OLD, 1)
    await scene.served(old.revision)
    scene.stop()
    scene.restart(LORAFLEET_CRASH_AT=step)
    with pytest.raises(grpc.aio.AioRpcError):
        await trainer.push(NEW, 2)
    scene.restart()
    push = scene.adapter()["spec"]["source"]["push"]
    assert (push["step"], push["revision"] == old.revision) == ((2, False) if named else (1, True))

    trainer.sent.clear()
    new = await trainer.push(NEW, 2)
    assert (trainer.sent, new.unchanged) == (asked, named)
    await scene.served(new.revision)
    assert scene.files() == TWO_REVISIONS


MOMENTS = {  # when the trainer dies: which of the four pieces has the operator at most
    "before a byte": ("accepted", 1),
    "in a tensor": ("piece", 1),
    "between tensors": ("piece", 2),
    "before its commit": ("piece", 4),
    "after its commit": ("commit", 1),
}


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_trainer_that_is_killed_leaves_the_old_revision_and_the_next_push_is_right(
    scene: Scene, moment: str
) -> None:
    trainer = scene.trainer()
    old = await trainer.push(OLD, 1)
    await scene.served(old.revision)
    stagings = scene.fleet.books.stagings
    which, count = MOMENTS[moment]
    command = [sys.executable, TESTS / "push_victim.py", scene.address, trainer.token]
    killed = await asyncio.to_thread(
        subprocess.run,
        [*command, scene.namespace, which, str(count)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
        timeout=60,
    )
    assert killed.returncode == -signal.SIGKILL
    if which != "commit":
        assert scene.adapter()["spec"]["source"]["push"]["revision"] == old.revision
        assert scene.fleet.books.stagings == stagings

    trainer.sent.clear()
    new = await trainer.push(NEW, 2)
    assert len(trainer.sent) in ({0, 1, 2} if which != "accepted" else {2})
    await scene.served(new.revision)
    assert scene.adapter()["spec"]["source"]["push"] == {"revision": new.revision, "step": 2}
    assert scene.files() == TWO_REVISIONS
