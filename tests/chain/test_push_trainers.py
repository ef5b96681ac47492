"""TRL's GRPO trains through a real engine: each rollout comes from the adapter of its step."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from statistics import mean
from typing import TYPE_CHECKING, Any

import pytest
from lorafleet.push import NotServed
from lorafleet.push.callback import PushCallback
from lorafleet.push.rollouts import FleetRollouts
from operator_chain import BASE
from push_training import (
    PROMPTS,
    RANK_PATTERN,
    Compared,
    Standing,
    gap,
    grpo,
    policy,
    supervised,
    tokenizer_of,
    trained,
    weights,
)
from real_chain import ENGINE
from waiting import eventually

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


def test_rollouts_are_of_the_revision_that_the_trainer_meant_or_fail(
    fleet: RealChain, client: Fleet
) -> None:
    model, another = (trained(policy(fleet.model), seed) for seed in (5, 6))
    push = {"name": "meant", "base_model": BASE, "pool": "pool"}
    rollouts = FleetRollouts(client, fleet.engines[ENGINE].url, **push)
    trainer = Standing(model, tokenizer_of(fleet.model), max_completion_length=64)

    def rollout() -> str:
        """Return what was said instead of a rollout, "" after one, which must be of the model."""
        try:
            found = rollouts(PROMPTS, trainer)
        except NotServed as error:
            return str(error)
        assert gap(model, found) < NEAR
        assert gap(another, found) > 4 * NEAR
        return ""

    assert rollout() == ""
    before = rollouts.revision
    assert before is not None
    pinned = before.pinned()
    assert pinned == f"{before.served_name}@{fleet.status('meant')['digest'][7:]}"
    with ThreadPoolExecutor(8) as pool:  # another push, in the middle of these
        running = [pool.submit(rollout) for _ in range(16)]
        after = client.push(another, step=1, **push)
        assert after is not None
        after.wait()
        said = {each.result() for each in running}
    here = fleet.status("meant")["digest"][7:19]
    url, served = fleet.engines[ENGINE].url, before.served_name
    gone = f"{url} does not serve step 0: The model `{pinned}` does not exist"
    line = f"{gone}: of {served} this engine has {here}."
    eventually(lambda: rollout() == line, 60, "the old revision goes")
    # What vLLM had let in already when the revision went is told less by it.
    assert said <= {"", line, f"{gone}."}
    fleet.wait_gone("meant")


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


def test_a_checkpoint_is_a_safe_point_at_which_vllm_is_started_again(
    fleet: RealChain, client: Fleet, tmp_path: Path
) -> None:
    model = policy(fleet.model)
    push = {"name": "saved", "base_model": BASE, "pool": "pool"}
    for step in range(3):  # each is a load
        revision = client.push(trained(model, 10 + step), step=step, **push)
        assert revision is not None
        revision.wait()
    rule = {"maxLoads": 2, "when": "SafePoint", "drainSeconds": 60, "minReadyEngines": 0}
    fleet.patch_pool({"recycle": rule})
    eventually(lambda: "waits for a safe point" in pool_says(fleet), 60, "no engine is due")

    def kubelet() -> None:
        fleet.engines[ENGINE].process.popen.wait(600)
        fleet.restart_vllm(ENGINE)

    callback = PushCallback(client, safe_point_on_save=420, **push)
    before = fleet.state(ENGINE)["instance"]
    with ThreadPoolExecutor(1) as pool:
        restarted = pool.submit(kubelet)
        supervised(model, tmp_path, callback, 2, save_strategy="steps", save_steps=2).train()
        restarted.result()
    assert callback.safe_point is not None
    (engine,) = callback.safe_point.recycled
    assert (engine.pod, engine.loads > 2) == (ENGINE, True)
    assert min(engine.host_bytes_before, engine.host_bytes_after) > 0
    assert fleet.state(ENGINE)["instance"] != before
    assert callback.revision is not None
    model.save_pretrained(tmp_path / "last")
    served = fleet.tokens(ENGINE, callback.revision.served_name)
    assert served == fleet.stock_tokens(ENGINE, tmp_path / "last")
    fleet.patch_pool({"recycle": None})
    fleet.wait_gone("saved")


def pool_says(fleet: RealChain) -> str:
    """Return what the pool's status says that an engine which is due waits for."""
    return str(fleet.status("pool", "enginepools").get("recycleMessage", ""))
