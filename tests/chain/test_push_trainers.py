"""TRL's GRPO trains through a real engine: each rollout comes from the adapter of its step."""

from __future__ import annotations

import warnings
from statistics import mean
from typing import TYPE_CHECKING, Any

import pytest
from lorafleet.push.callback import PushCallback
from lorafleet.push.rollouts import FleetRollouts
from operator_chain import BASE
from push_training import RANK_PATTERN, Compared, grpo, policy, supervised, weights
from real_chain import ENGINE

if TYPE_CHECKING:
    from pathlib import Path

    from lorafleet.push import Fleet
    from real_chain import RealChain

pytestmark = [pytest.mark.cluster, pytest.mark.chain, pytest.mark.engine]
STEPS = 20
NEAR = 0.05
"""Nats, mean over a step's tokens, that bfloat16 in two implementations may differ by."""
RISE = 0.2
"""Of the reward; engines do not choose by our seeds, and of 12 trainings none rose by less than 0.43."""


@pytest.mark.parametrize(
    ("config", "steps"), [({"rank_pattern": RANK_PATTERN}, STEPS), ({}, 8)], ids=["ranks", "one"]
)
def test_grpo_learns_from_rollouts_of_the_adapter_of_each_step(
    fleet: RealChain, client: Fleet, tmp_path: Path, config: dict[str, Any], steps: int
) -> None:
    model = policy(fleet.model, **config)
    before, said = weights(model), fleet.tokens(ENGINE, BASE)
    push = {"name": "grpo", "base_model": BASE, "pool": "pool"}
    compared = Compared(FleetRollouts(client, fleet.engines[ENGINE].url, **push))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of TRL about vLLM's version, and of what it imports
        grpo(model, fleet.model, tmp_path / "trl", compared, steps).train()
    assert compared.steps == list(range(steps))
    assert max(compared.gaps) < NEAR
    # While the policy is still open: the adapter of one step earlier says something else.
    assert mean(compared.stale_gaps[: STEPS // 2]) > 2 * NEAR
    assert compared.base_gaps[-1] > 4 * NEAR, "the adapter changes what the model says"
    if steps == STEPS:
        assert mean(compared.rewards[-4:]) > mean(compared.rewards[:4]) + RISE
    assert weights(model) == before
    assert fleet.tokens(ENGINE, BASE) == said
    revision = compared.rollouts.revision
    assert revision is not None
    assert (revision.step, set(revision.staleness().values())) == (steps - 1, {0})
    fleet.wait_gone("grpo")


def test_the_callback_of_hugging_faces_trainer_pushes_beside_it(
    fleet: RealChain, client: Fleet, tmp_path: Path
) -> None:
    model = policy(fleet.model)
    callback = PushCallback(client, name="hf", base_model=BASE, pool="pool")
    supervised(model, tmp_path, callback, steps=3).train()
    revision = callback.revision
    assert revision is not None
    assert revision.step == 3
    assert revision.unchanged or callback.pending is not None
    model.save_pretrained(tmp_path / "saved")
    served = fleet.tokens(ENGINE, revision.served_name)
    assert served == fleet.stock_tokens(ENGINE, tmp_path / "saved")
    assert served != fleet.tokens(ENGINE, BASE)
    fleet.wait_gone("hf")
