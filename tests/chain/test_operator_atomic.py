"""A revision that all engines serve or none, while operator and engines are killed (`kill -9`)."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from waiting import eventually

if TYPE_CHECKING:
    from operator_chain import Chain

pytestmark = [pytest.mark.cluster, pytest.mark.chain]
ENGINES = ("engine-0", "engine-1", "engine-2")
SECONDS = 60


@pytest.fixture
def chain(chain: Chain) -> Chain:
    for number, name in enumerate(ENGINES):
        chain.start_engine(name, number)
    chain.pool()
    return chain


def killed_in_an_update(chain: Chain, step: str) -> str:
    """Let an operator die at `step` of an update; return the old revision's digest."""
    operator = chain.start_operator()
    chain.adapter("sql", rollout={"atomic": True})
    eventually(lambda: chain.ready("sql"), SECONDS)
    old: str = chain.status("sql")["digest"]
    operator.process.kill()
    operator = chain.start_operator(LORAFLEET_CRASH_AT=step)
    chain.put_source("sql", "d02-all-fp32")
    eventually(lambda: not operator.process.running, SECONDS, f"the operator dies at {step}")
    return old


def updated(chain: Chain, old: str) -> str:
    """Wait until the update is over; return the new revision's digest."""
    eventually(lambda: chain.ready("sql", old), SECONDS)
    assert not {"rollout", "decided"} & chain.status("sql").keys()
    new: str = chain.status("sql")["digest"]
    return new


def moves(chain: Chain) -> list[list[str]]:
    return [chain.moves(name, f"{chain.namespace}/sql") for name in ENGINES]


@pytest.mark.parametrize("step", ["staged", "loaded"])
def test_an_operator_that_dies_before_the_decision_leaves_none_with_the_new_revision(
    chain: Chain, step: str
) -> None:
    old = killed_in_an_update(chain, step)
    assert moves(chain) == [[old]] * 3
    chain.start_operator()
    new = updated(chain, old)
    assert moves(chain) == [[old, new]] * 3


@pytest.mark.parametrize("step", ["decided", "published"])
def test_an_operator_that_dies_after_the_decision_leaves_it_to_the_next_to_move_all(
    chain: Chain, step: str
) -> None:
    old = killed_in_an_update(chain, step)
    decision = chain.status("sql")["decided"]
    assert decision["engines"] == list(ENGINES)
    if step == "decided":
        assert moves(chain) == [[old]] * 3
    chain.put_source("sql", "d09-rank-6")  # the next one has to wait
    chain.start_operator()
    eventually(lambda: chain.ready("sql", old, decision["digest"]), SECONDS)
    assert moves(chain) == [[old, decision["digest"], chain.status("sql")["digest"]]] * 3


def test_an_engine_that_dies_between_the_phases_serves_the_decided_revision_and_no_other(
    chain: Chain,
) -> None:
    old = killed_in_an_update(chain, "decided")
    name = f"{chain.namespace}/sql"
    chain.engines["engine-1"].process.kill()
    chain.restart_engine("engine-1")
    eventually(lambda: chain.loads("engine-1") == 2, SECONDS, "its sidecar brings both back")
    assert chain.moves("engine-1", name) == []
    chain.start_operator()
    new = updated(chain, old)
    assert moves(chain) == [[old, new], [new], [old, new]]
    assert chain.answer("engine-1", name) == new[7:19]


def test_an_engine_that_is_cut_off_between_the_phases_follows_when_it_is_back(
    chain: Chain,
) -> None:
    old = killed_in_an_update(chain, "decided")
    decided = chain.status("sql")["decided"]["digest"]
    sidecar = chain.sidecars["engine-2"].process
    sidecar.signal(signal.SIGSTOP)
    try:
        operator = chain.start_operator()
        eventually(lambda: moves(chain)[:2] == [[old, decided]] * 2, SECONDS)
        eventually(
            lambda: chain.status("sql").get("decided", {}).get("waitingFor") == "engine-2", SECONDS
        )
        operator.process.kill()
        chain.start_operator()
    finally:
        sidecar.signal(signal.SIGCONT)
    assert updated(chain, old) == decided
    assert moves(chain) == [[old, decided]] * 3
