"""TRL's GRPO trains through a real engine: each rollout comes from the adapter of its step."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import pytest
from kube_rest import KubeRest
from lorafleet.push import Fleet
from lorafleet.push.callback import PushCallback
from lorafleet.push.rollouts import FleetRollouts
from operator_chain import BASE
from processes import free_port
from push_training import RANK_PATTERN, Compared, grpo, policy, supervised, weights
from pushing import PUSH_RULES, account, token
from real_chain import ENGINE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from real_chain import RealChain

pytestmark = [pytest.mark.cluster, pytest.mark.chain, pytest.mark.engine]
STEPS = 20
NEAR = 0.05
"""Nats, mean over a step's tokens, that bfloat16 in two implementations may differ by."""


@pytest.fixture
def client(fleet: RealChain, tmp_path: Path) -> Iterator[Fleet]:
    """The engine's fleet with an operator that takes pushes."""
    address = f"127.0.0.1:{free_port()}"
    fleet.operator.process.stop()
    more = {"LORAFLEET_PUSH_LISTEN": address, "LORAFLEET_PUSH_DIR": str(tmp_path / "pushed")}
    fleet.start_operator(**more)
    with KubeRest(fleet.kubeconfig) as kube:
        who = f"trainer-{tmp_path.name[-12:].strip('_').lower().replace('_', '-')}"
        account(kube, fleet.namespace, who, PUSH_RULES)
        text = token(kube, fleet.namespace, who)
    with Fleet(address, fleet.namespace, token=lambda: text) as client:
        yield client
    fleet.operator.process.stop()
    fleet.start_operator()


def test_grpo_learns_from_rollouts_of_the_adapter_of_each_step(
    fleet: RealChain, client: Fleet, tmp_path: Path
) -> None:
    model = policy(fleet.model, rank_pattern=RANK_PATTERN)
    before = weights(model)
    push = {"name": "grpo", "base_model": BASE, "pool": "pool"}
    compared = Compared(FleetRollouts(client, fleet.engines[ENGINE].url, **push))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of TRL about vLLM's version, and of what it imports
        grpo(model, fleet.model, tmp_path / "trl", compared, STEPS).train()
    assert compared.steps == list(range(STEPS))
    assert max(compared.gaps) < NEAR
    assert compared.base_gaps[-1] > 4 * NEAR, "the adapter changes what the model says"
    first, last = compared.rewards[:4], compared.rewards[-4:]
    assert sum(last) > sum(first) + 4 * 0.15
    assert weights(model) == before
    revision = compared.rollouts.revision
    assert revision is not None
    assert (revision.step, set(revision.staleness().values())) == (STEPS - 1, {0})
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
