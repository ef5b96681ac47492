"""A trainer's revisions go to all engines at once or to none, and it is told which step each serves."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import httpx
import pytest
from kube_rest import KubeRest
from lorafleet.errors import LorafleetError
from lorafleet.push import Fleet, NotServed
from operator_chain import BASE, CASES, Chain
from pushing import PUSH_RULES, account, token
from servers import free_port
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from localstack import Operator

pytestmark = [pytest.mark.cluster, pytest.mark.chain]
ENGINES = ("engine-0", "engine-1")
SECONDS = 60


class Scene:
    """Two engines, an operator that takes pushes, and a trainer's client."""

    def __init__(self, chain: Chain, client: Fleet, settings: dict[str, str]) -> None:
        self.chain, self.client, self._settings = chain, client, settings
        self.operator = self.start()

    def start(self) -> Operator:
        self.operator = self.chain.start_operator(**self._settings)
        return self.operator

    def steps(self) -> dict[str, int | None]:
        """Return by pod which step the adapter's status says is served."""
        engines = self.chain.status("rl").get("engines", ())
        return {each["podName"]: each.get("step") for each in engines}

    def measured(self) -> set[str]:
        text = httpx.get(self.operator.metrics_url).text
        name = "lorafleet_operator_adapter_engine_step{"
        return {line for line in text.splitlines() if line.startswith(name)}

    def series(self, pod: str, step: int) -> str:
        labels = f'name="rl",namespace="{self.chain.namespace}",pod="{pod}"'
        return f"lorafleet_operator_adapter_engine_step{{{labels}}} {step:.1f}"

    def moves(self) -> list[int]:
        """Return by engine how often the adapter's name came to mean another revision."""
        return [len(self.chain.moves(each, f"{self.chain.namespace}/rl")) for each in ENGINES]


@pytest.fixture
def scene(chain: Chain, tmp_path: Path) -> Iterator[Scene]:
    for number, name in enumerate(ENGINES):
        chain.start_engine(name, number)
    chain.pool()
    address = f"127.0.0.1:{free_port()}"
    with KubeRest(chain.kubeconfig) as kube:
        account(kube, chain.namespace, "trainer", PUSH_RULES)
        text = token(kube, chain.namespace, "trainer")
    settings = {"LORAFLEET_PUSH_LISTEN": address, "LORAFLEET_PUSH_DIR": str(tmp_path / "pushed")}
    with Fleet(address, chain.namespace, token=lambda: text) as client:
        yield Scene(chain, client, settings)


def test_a_push_is_served_by_all_or_none_and_its_step_is_told_of_each_engine(scene: Scene) -> None:
    chain, client = scene.chain, scene.client
    push = {"name": "rl", "base_model": BASE, "pool": "pool", "atomic": True}
    first = client.push(CASES / "d01-plain-bf16", step=10, **push)
    assert first is not None
    first.wait(timeout=SECONDS)
    assert chain.get("rl")["spec"]["rollout"]["atomic"] is True
    assert scene.moves() == [1, 1]

    sidecar = chain.sidecars["engine-1"].process
    sidecar.signal(signal.SIGSTOP)
    try:
        eventually(lambda: chain.condition("rl", "Ready")[1] == "EngineUnreachable", SECONDS)
        second = client.push(CASES / "d02-all-fp32", step=14, **push)
        assert second is not None

        def waits() -> bool:
            rollout = chain.status("rl").get("rollout", {})
            return (rollout.get("engines"), rollout.get("waitingFor")) == (["engine-0"], "engine-1")

        eventually(waits, SECONDS)
        with pytest.raises(NotServed, match="engine-1"):
            second.wait(engines=1, timeout=1)
        assert scene.moves() == [1, 1]
        assert second.staleness() == {"engine-0": 4}
        assert scene.steps()["engine-0"] == 10

        # Another operator that has no more than what the first one wrote down.
        scene.operator.process.kill()
        scene.start()
        eventually(lambda: second.staleness() == {"engine-0": 4}, SECONDS)
        eventually(lambda: not chain.ready("rl") and waits(), SECONDS)
        eventually(lambda: scene.series("engine-0", 10) in scene.measured(), SECONDS)
        assert scene.moves() == [1, 1], "the engine that fell silent is waited for by this one too"
    finally:
        sidecar.signal(signal.SIGCONT)
    second.wait(timeout=SECONDS)
    assert scene.moves() == [2, 2]
    eventually(lambda: scene.steps() == dict.fromkeys(ENGINES, 14), SECONDS)
    assert second.staleness() == dict.fromkeys(ENGINES, 0)
    assert first.staleness() == dict.fromkeys(ENGINES, 0)
    eventually(lambda: scene.measured() == {scene.series(each, 14) for each in ENGINES}, SECONDS)


def test_a_push_that_asks_for_all_or_none_is_refused_where_the_adapter_says_otherwise(
    scene: Scene,
) -> None:
    push = {"name": "rl", "base_model": BASE, "pool": "pool"}
    revision = scene.client.push(CASES / "d01-plain-bf16", **push)
    assert revision is not None
    with pytest.raises(LorafleetError, match=r"has rollout\.atomic false"):
        scene.client.push(CASES / "d02-all-fp32", atomic=True, **push)
