"""The operator dies by `kill -9` at each of its steps; the next one goes on without help."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from lorafleet_operator.crashpoint import STEPS
from waiting import eventually

if TYPE_CHECKING:
    from operator_chain import Chain

pytestmark = [pytest.mark.cluster, pytest.mark.chain]


@pytest.fixture
def chain(chain: Chain) -> Chain:
    chain.start_engine("engine-0", 0)
    chain.pool()
    return chain


APPLIED = [step for step in STEPS if step != "unloaded" and not step.startswith("push.")]
"""Steps that an adapter without a trainer comes by."""


@pytest.mark.parametrize("step", APPLIED)
def test_an_apply_goes_on_after_a_kill(chain: Chain, step: str) -> None:
    operator = chain.start_operator(LORAFLEET_CRASH_AT=step)
    chain.adapter("sql", rollout={"atomic": step == "decided"})
    eventually(lambda: not operator.process.running, what=f"the operator dies at {step}")
    chain.start_operator()
    eventually(lambda: chain.ready("sql"))
    digest = chain.status("sql")["digest"]
    assert chain.answer("engine-0", f"{chain.namespace}/sql") == digest[7:19]
    assert chain.loads("engine-0") == 1, "what the engine had done was not done again"


@pytest.mark.parametrize("step", ["staged", "loaded", "published"])
def test_an_update_goes_on_after_a_kill_and_serves_one_whole_revision_meanwhile(
    chain: Chain, step: str
) -> None:
    operator = chain.start_operator()
    chain.adapter("sql")
    eventually(lambda: chain.ready("sql"))
    old = chain.status("sql")["digest"]
    model = f"{chain.namespace}/sql"
    operator.process.kill()
    operator = chain.start_operator(LORAFLEET_CRASH_AT=step)
    chain.put_source("sql", "d02-all-fp32")
    eventually(lambda: not operator.process.running, what=f"the operator dies at {step}")
    served = chain.answer("engine-0", model)
    assert (served == old[7:19]) is (step != "published")
    chain.start_operator()
    eventually(lambda: chain.ready("sql", old))
    assert chain.answer("engine-0", model) == chain.status("sql")["digest"][7:19]
    assert chain.loads("engine-0") == 2


def test_a_deletion_goes_on_after_a_kill(chain: Chain) -> None:
    operator = chain.start_operator(LORAFLEET_CRASH_AT="unloaded")
    chain.adapter("sql")
    eventually(lambda: chain.ready("sql"))
    chain.delete("loraadapters", "sql")
    eventually(lambda: not operator.process.running, what="the operator dies after the unload")
    assert chain.exists("sql"), "the finalizer is the last thing to go"
    chain.start_operator()
    eventually(lambda: not chain.exists("sql"))
    assert chain.served("engine-0") == set()
