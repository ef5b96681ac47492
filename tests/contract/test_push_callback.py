"""Hugging Face's Trainer pushes to the real push service, which may refuse it."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from lorafleet.errors import AccessDenied, InvalidAdapter, LorafleetError
from lorafleet.push import Fleet
from lorafleet.push.callback import PushCallback
from peft_trainers import peft_model
from processes import free_port
from push_training import supervised
from torch import nn
from transformers import TrainerCallback

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS = Path(__file__).parents[1]
STEPS = 4
PLACE = {"base_model": "tiny/dense", "pool": "pool"}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where pushes with the token `good` are taken."""
    root = tmp_path_factory.mktemp("pushed")
    with subprocess.Popen(
        [sys.executable, TESTS / "push_door.py", root],
        env={**os.environ, "PYTHONPATH": str(TESTS.parent / "hack")},
        stdout=subprocess.PIPE,
        text=True,
    ) as door:
        assert door.stdout is not None
        yield f"127.0.0.1:{int(door.stdout.readline())}"
        door.kill()


class OneAfterAnother(TrainerCallback):  # type: ignore[misc]
    """Begins a step when what came of the push of the step before is known."""

    def __init__(self, pushing: PushCallback, tokens: list[str]) -> None:
        self._pushing, self._tokens = pushing, tokens
        self.begun = 0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        if self._pushing.pending is not None:
            with suppress(LorafleetError):
                self._pushing.pending.revision(60)
        self.begun += 1
        self._tokens.pop(0)


def train(
    address: str, tokens: list[str], output: Path, **how: Any
) -> tuple[PushCallback, int, Any]:
    """Train for STEPS steps, the first of `tokens` being used until the first step, and so on.

    Return the callback, how many steps were begun, and what the training raised.
    """
    with Fleet(address, "team-a", token=lambda: tokens[0]) as fleet:
        callback = PushCallback(fleet, wait=False, **how, **PLACE)
        trainer = supervised(peft_model(), output, callback, STEPS)
        watched = OneAfterAnother(callback, tokens)
        trainer.add_callback(watched)
        raised = None
        try:
            trainer.train()
        except LorafleetError as error:
            raised = error
    return callback, watched.begun, raised


@pytest.mark.parametrize(("on_failure", "steps"), [("raise", STEPS), ("stop", 2), ("warn", STEPS)])
def test_what_a_refused_push_means_is_the_trainers_to_say(
    address: str, on_failure: str, steps: int, tmp_path: Path
) -> None:
    tokens = ["another's"] * (STEPS + 1)
    callback, begun, raised = train(
        address, tokens, tmp_path, name="refused", on_failure=on_failure
    )
    assert begun == steps
    assert isinstance(callback.error, AccessDenied)
    assert raised is (None if on_failure == "warn" else callback.error)
    assert callback.revision is None


def test_a_training_whose_pushes_are_taken_again_ends_well(address: str, tmp_path: Path) -> None:
    tokens = ["good", "good", "another's", "another's", "good"]
    callback, _, raised = train(address, tokens, tmp_path, name="again", on_failure="raise")
    assert (raised, callback.error) == (None, None)
    assert callback.revision is not None
    assert callback.revision.step == STEPS


def test_what_is_no_adapter_ends_every_training_at_its_first_step(address: str) -> None:
    with Fleet(address, "team-a", token=lambda: "good") as fleet:
        callback = PushCallback(fleet, name="none", on_failure="warn")
        first = SimpleNamespace(global_step=1)
        with pytest.raises(InvalidAdapter, match="Linear is no PEFT model"):
            callback.on_step_end(None, first, None, model=nn.Linear(1, 1))
        with pytest.raises(ValueError, match="on_failure is 'ignore', not raise, stop, warn"):
            PushCallback(fleet, name="none", on_failure="ignore")  # type: ignore[arg-type]


def test_of_several_processes_the_main_one_pushes_what_all_have_trained(
    address: str, tmp_path: Path
) -> None:
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen(
            [sys.executable, TESTS / "push_ddp.py", address, tmp_path],
            env={**os.environ, **place, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            cwd=TESTS,
            text=True,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=300)[0].splitlines()[-1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert said == ["True 3", "True None"]
    with Fleet(address, "team-a", token=lambda: "good") as fleet:
        saved = fleet.push(tmp_path / "saved", name="ddp", **PLACE)
    assert saved is not None
    assert saved.sent_bytes == 0, "the operator has what the model saves"
