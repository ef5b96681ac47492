"""The operator's part of the chain on a real API server: fake engines, everything else real."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import httpx
import pytest
from waiting import eventually

if TYPE_CHECKING:
    from operator_chain import Chain

pytestmark = [pytest.mark.cluster, pytest.mark.chain]


def test_a_manifest_is_served_updated_and_deleted_and_a_killed_operator_changes_nothing(
    chain: Chain,
) -> None:
    chain.start_engine("engine-0", 0)
    chain.start_engine("engine-1", 1)
    operator = chain.start_operator()
    chain.pool()
    chain.adapter("sql")
    model = f"{chain.namespace}/sql"
    eventually(lambda: chain.ready("sql"), what="the adapter becomes Ready")

    status = chain.status("sql")
    first = status["digest"]
    assert (status["readyEngines"], status["desiredEngines"]) == (2, 2)
    assert {e["digest"] for e in status["engines"]} == {first}
    assert {chain.answer(e, model) for e in chain.engines} == {first[7:19]}
    assert chain.get("sql")["metadata"]["finalizers"] == ["lorafleet.dev/unload"]
    assert not chain.get("sql")["metadata"].get("annotations")
    eventually(lambda: chain.events("sql") == ["Ready"])

    # kill -9 and a restart: nothing is loaded again, the status stays as it is.
    before = chain.get("sql")
    loads = [chain.loads(engine) for engine in chain.engines]
    operator.process.kill()
    operator = chain.start_operator()
    eventually(lambda: chain.condition("pool", "EnginesReady", "enginepools")[0] == "True")
    chain.put_source("sql", "d02-all-fp32")
    eventually(lambda: chain.status("sql")["digest"] != first, what="a new revision is seen")
    eventually(lambda: chain.ready("sql"))
    status = chain.status("sql")
    assert status["history"] == [first]
    assert {chain.answer(e, model) for e in chain.engines} == {status["digest"][7:19]}
    assert [chain.loads(engine) for engine in chain.engines] == [each + 1 for each in loads]
    assert before["metadata"]["uid"] == chain.get("sql")["metadata"]["uid"]

    # A refused revision leaves the old one everywhere.
    chain.put_source("sql", "d10-rank-over-max")
    eventually(lambda: chain.condition("sql", "Ready") == ("False", "RankTooHigh"))
    message = chain.full_condition("sql", "SourceResolved")["message"]
    assert "LoRA rank 16 is greater than max_lora_rank 8" in message
    assert f"{status['digest'][:19]} keeps serving {model}" in message
    assert {chain.answer(e, model) for e in chain.engines} == {status["digest"][7:19]}
    assert [chain.loads(engine) for engine in chain.engines] == [each + 1 for each in loads]

    # An exit in good order unloads nothing either: that is for deletions only.
    operator.process.signal(signal.SIGTERM)
    operator.process.popen.wait(60)
    assert {chain.answer(e, model) for e in chain.engines} == {status["digest"][7:19]}
    chain.start_operator()
    chain.delete("loraadapters", "sql")
    eventually(lambda: not chain.exists("sql"), what="the adapter goes")
    assert [chain.served(engine) for engine in chain.engines] == [set(), set()]


def test_what_was_deleted_while_the_operator_was_away_is_unloaded_when_it_comes_back(
    chain: Chain,
) -> None:
    chain.start_engine("engine-0", 0)
    operator = chain.start_operator()
    chain.pool()
    chain.adapter("sql")
    eventually(lambda: chain.ready("sql"))
    operator.process.kill()
    chain.delete("loraadapters", "sql")
    assert chain.exists("sql"), "the finalizer keeps it"
    assert chain.served("engine-0")
    chain.start_operator()
    eventually(lambda: not chain.exists("sql"))
    eventually(lambda: chain.served("engine-0") == set(), what="the orphan is unloaded")


def test_a_deletion_does_not_wait_for_an_engine_that_is_gone_nor_for_ever_for_one_that_is_silent(
    chain: Chain,
) -> None:
    chain.start_engine("engine-0", 0)
    chain.start_engine("engine-1", 1)
    chain.start_operator(LORAFLEET_DELETION_TIMEOUT_SECONDS="10")
    chain.pool()
    chain.adapter("gone")
    chain.adapter("silent")
    eventually(lambda: chain.ready("gone") and chain.ready("silent"))
    chain.pods.delete("engine-1")
    chain.sidecars["engine-1"].process.kill()
    chain.delete("loraadapters", "gone")
    eventually(lambda: not chain.exists("gone"))
    assert "ForcedCleanup" not in chain.events("gone")
    chain.sidecars["engine-0"].process.kill()
    chain.delete("loraadapters", "silent")
    eventually(lambda: not chain.exists("silent"))
    eventually(lambda: "ForcedCleanup" in chain.events("silent"))


def test_an_adapter_that_went_at_once_haunts_neither_the_engine_nor_its_namesake(
    chain: Chain,
) -> None:
    """It had no finalizer yet, or somebody took that away: nobody tells its loop to stop."""
    chain.start_engine("engine-0", 0)
    chain.start_operator()
    chain.pool()
    chain.adapter("steady")
    eventually(lambda: chain.ready("steady"))
    for _ in range(5):
        chain.adapter("flash")
        chain.delete("loraadapters", "flash")
        eventually(lambda: not chain.exists("flash"))
    chain.adapter("flash", "d09-rank-6", servedName="second")
    digests = [""]
    for case in ("d09-rank-6", "d06-rank-and-alpha-pattern", "d11-rslora"):
        loads = chain.loads("engine-0")
        chain.put_source("flash", case)
        eventually(lambda: chain.status("flash").get("digest", "") not in digests)
        eventually(lambda: chain.ready("flash"))
        digests.append(chain.status("flash")["digest"])
    assert chain.loads("engine-0") == loads + 1
    assert chain.served("engine-0") == {"second", f"{chain.namespace}/steady"}


def test_of_two_adapters_with_one_served_name_the_older_is_served(chain: Chain) -> None:
    chain.start_engine("engine-0", 0)
    chain.start_operator()
    chain.pool()
    chain.adapter("a-first", servedName="shared")
    eventually(lambda: chain.ready("a-first"))
    chain.adapter("b-second", "d02-all-fp32", servedName="shared")
    eventually(lambda: chain.condition("b-second", "Placed") == ("False", "NameTaken"))
    text = chain.full_condition("b-second", "Placed")["message"]
    assert text == f"served name shared is taken by {chain.namespace}/a-first"
    chain.delete("loraadapters", "a-first")
    eventually(lambda: chain.ready("b-second"), what="the name is free")


def test_an_engine_without_the_plugin_is_served_too_and_the_pool_says_so(chain: Chain) -> None:
    """Cluster-wide this time: the operator serves every namespace."""
    chain.start_engine("engine-0", 0, "--plain")
    operator = chain.start_operator(LORAFLEET_NAMESPACES="")
    chain.pool()
    chain.adapter("sql")
    eventually(lambda: chain.ready("sql"))
    assert f"{chain.namespace}/sql" in chain.served("engine-0")
    inactive = ("False", "PluginInactive")
    eventually(lambda: chain.condition("pool", "PluginActive", "enginepools") == inactive)
    plugin = chain.full_condition("pool", "PluginActive", "enginepools")
    assert plugin["message"].startswith("engine engine-0: ")

    def metrics() -> str:
        return httpx.get(operator.metrics_url, timeout=60).text

    series = f'{{name="sql",namespace="{chain.namespace}",status="True",type="Ready"}} 1.0'
    assert f"lorafleet_operator_adapter_condition{series}" in metrics()
    chain.delete("loraadapters", "sql")
    eventually(lambda: not chain.exists("sql"))
    assert chain.served("engine-0") == set()
    eventually(lambda: 'name="sql"' not in metrics(), what="the series go with the adapter")
