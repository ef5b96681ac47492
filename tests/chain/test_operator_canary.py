"""A revision on trial and ways back, on a real API server: fake engines, everything else real."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from described import describe
from localcluster import find_binary
from operator_chain import GROUP, Chain
from prometheus_client.parser import text_string_to_metric_families
from waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.chain]
KUBECTL = find_binary("kubectl")
FIRST, SECOND, THIRD = "d01-plain-bf16", "d02-all-fp32", "d11-rslora"


def counted(chain: Chain, name: str) -> float:
    """Return what the running operator counts."""
    assert chain.operator is not None
    families = text_string_to_metric_families(
        httpx.get(chain.operator.metrics_url, timeout=60).text
    )
    return sum(s.value for f in families for s in f.samples if s.name == name)


def patch(chain: Chain, **spec: Any) -> None:
    chain.custom.patch_namespaced_custom_object(
        *GROUP, chain.namespace, "loraadapters", "sql", {"spec": spec}
    )


def says(chain: Chain, status: str, reason: str) -> bool:
    """Whether Ready says so of the spec as it is."""
    found = chain.full_condition("sql", "Ready")
    current = found.get("observedGeneration") == chain.get("sql")["metadata"]["generation"]
    return current and (found["status"], found["reason"]) == (status, reason)


def answers(chain: Chain) -> list[str]:
    return sorted(chain.answer(engine, f"{chain.namespace}/sql") for engine in chain.engines)


def test_a_trial_outlives_the_operator_and_ways_back_cost_no_byte(chain: Chain) -> None:
    for index in range(2):
        chain.start_engine(f"engine-{index}", index)
    operator = chain.start_operator()
    chain.pool()
    canary = {"engines": 1, "holdSeconds": 600, "maxErrorRate": "10%"}
    chain.adapter("sql", FIRST, rollout={"canary": canary})
    eventually(lambda: says(chain, "True", "Ready"), what="the first revision needs no trial")
    first = chain.status("sql")["digest"][7:19]

    # The operator is killed in the middle of a trial.
    chain.put_source("sql", SECOND)
    eventually(lambda: (chain.status("sql").get("canary") or {}).get("since"), what="a trial")
    trial = chain.status("sql")["canary"]
    second = trial["digest"][7:19]
    assert says(chain, "False", "Canary")
    assert answers(chain) == sorted([first, second])
    assert trial["engines"] == 1
    seen = describe(KUBECTL, chain.kubeconfig, chain.namespace, "loraadapter", "sql")
    assert seen.says("Ready", "Canary", "1 of 2 engines try"), seen.text
    loads = sum(chain.loads(engine) for engine in chain.engines)
    operator.process.kill()
    operator = chain.start_operator()
    eventually(lambda: counted(chain, "lorafleet_operator_reconcile_duration_seconds_count") > 0)
    found = chain.status("sql")
    assert found["canary"]["since"] == trial["since"]
    patch(chain, rollout={"canary": {**canary, "holdSeconds": 1}})
    eventually(lambda: says(chain, "True", "Ready"), what="the trial ends well")
    assert answers(chain) == [second, second]
    found = chain.status("sql")
    assert "canary" not in found
    assert found["stable"]["digest"] == found["digest"]
    assert [digest[7:19] for digest in found["history"]] == [first]
    assert sum(chain.loads(engine) for engine in chain.engines) == loads + 1

    # A revision that nobody has is told in one line.
    patch(chain, revision=f"sha256:{'0' * 64}")
    eventually(lambda: says(chain, "False", "RevisionNotStaged"))
    seen = describe(KUBECTL, chain.kubeconfig, chain.namespace, "loraadapter", "sql")
    assert seen.tells("SourceResolved", "RevisionNotStaged", "is no revision of this adapter")
    assert answers(chain) == [second, second]

    # Back to a revision by its name: no byte is read or sent.
    read = counted(chain, "lorafleet_operator_source_read_bytes_total")
    sent = counted(chain, "lorafleet_operator_transfer_bytes_total")
    assert sent == 0  # since this operator was started: the other engine was filled by a neighbour
    patch(chain, revision=found["history"][0])
    eventually(lambda: says(chain, "True", "Ready") and answers(chain) == [first, first])
    assert counted(chain, "lorafleet_operator_transfer_bytes_total") == sent
    assert counted(chain, "lorafleet_operator_source_read_bytes_total") == read
    patch(chain, revision=None, rollout=None)
    eventually(lambda: says(chain, "True", "Ready") and answers(chain) == [second, second])
    assert counted(chain, "lorafleet_operator_transfer_bytes_total") == sent

    # A trial whose requests fail goes back by itself, and another operator does not try again.
    patch(chain, rollout={"canary": canary})
    chain.put_source("sql", THIRD)
    eventually(lambda: (chain.status("sql").get("canary") or {}).get("since"), what="a trial")
    bad = chain.status("sql")["canary"]["digest"]
    for engine in chain.engines.values():
        httpx.post(f"{engine.url}/test/failing", json={"digest": bad}, timeout=60)
    assert "" in answers(chain)  # the engine that tries it fails
    eventually(lambda: answers(chain) and says(chain, "False", "RolledBack"), what="a rollback")
    eventually(lambda: answers(chain) == [second, second])
    note = chain.status("sql")["rolledBack"]
    assert (note["digest"], note["reason"]) == (bad, "ErrorRate")
    assert "requests failed on the engines that tried it" in note["message"]
    eventually(lambda: chain.events("sql").count("RolledBack") == 1)
    seen = describe(KUBECTL, chain.kubeconfig, chain.namespace, "loraadapter", "sql")
    assert seen.tells("Loaded", "RolledBack", note["message"])
    assert counted(chain, "lorafleet_operator_rollbacks_total") == 1
    loads = sum(chain.loads(engine) for engine in chain.engines)
    operator.process.kill()
    chain.start_operator()
    eventually(lambda: counted(chain, "lorafleet_operator_reconcile_duration_seconds_count") > 2)
    assert says(chain, "False", "RolledBack")
    assert answers(chain) == [second, second]
    assert sum(chain.loads(engine) for engine in chain.engines) == loads
