"""From inventories to the planner's terms, to wake-ups, to pool status, to orphans."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from lorafleet_operator.affected import adapters_affected
from lorafleet_operator.api.v1alpha1 import EngineHealth
from lorafleet_operator.cluster.reads import engine_pod
from lorafleet_operator.cluster.writes import merge_patch
from lorafleet_operator.deletion import Waiting
from lorafleet_operator.holders import Holders
from lorafleet_operator.pool_pass import orphans, pool_status
from lorafleet_operator.pool_planner import PoolPlanner, snapshot
from lorafleet_operator.world import EngineView
from operator_builders import adapter, engine, known, loaded, pool, staged

if TYPE_CHECKING:
    from random import Random

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


def test_an_engine_that_restarts_counts_as_well_for_the_time_of_grace() -> None:
    starting = {"health": pb.ENGINE_HEALTH_STARTING}
    assert snapshot(engine(ill_for=10, **starting), 60, pool().spec).healthy
    assert not snapshot(engine(ill_for=61, **starting), 60, pool().spec).healthy
    assert not snapshot(engine(ill_for=float("inf"), **starting), 60, pool().spec).healthy
    refused = engine(ill_for=1, health=pb.ENGINE_HEALTH_REFUSED, health_message="no --enable-lora")
    found = snapshot(refused, 60, pool().spec)
    assert (found.health, found.health_message) == (EngineHealth.REFUSED, "no --enable-lora")


def test_of_adapters_with_one_served_name_the_oldest_owns_it_then_the_first_by_name() -> None:
    rivals = [
        known("b", "2026-01-01T00:00:00Z", servedName="shared"),
        known("a", "2026-01-02T00:00:00Z", servedName="shared"),
        known("z", "2025-01-01T00:00:00Z"),
    ]
    planner = PoolPlanner()
    planner.look_at_adapters(rivals)
    assert planner.claim("team-a/c", "shared", "2026-01-01T00:00:00Z") == "team-a/b"
    assert planner.claim("team-a/a", "shared", "2026-01-01T00:00:00Z") is None
    assert sorted(planner.claimants("shared")) == ["team-a/a", "team-a/b", "team-a/c"]
    planner.forget("team-a/a")
    assert planner.claim("team-a/b", "shared", "2026-01-01T00:00:00Z") is None
    assert planner.claim("team-a/b", "free", "2026-01-01T00:00:00Z") is None
    assert planner.claim("team-a/c", "shared", "2026-01-01T00:00:00Z") is None


def test_who_goes_on_under_a_name_of_before_hears_of_whoever_claims_it() -> None:
    planner = PoolPlanner()
    planner.look_at_adapters([known("a", servedName="new"), known("b", servedName="old")])
    assert planner.claimants("old") == ["team-a/b"]
    planner.keep("team-a/a", frozenset({"old", "older"}))
    assert planner.claimants("old") == ["team-a/b", "team-a/a"]
    assert planner.claimants("older") == ["team-a/a"]
    assert planner.owner("older") is None, "it is anybody's who asks for it"
    planner.keep("team-a/a", frozenset())
    assert planner.claimants("older") == []
    planner.keep("team-a/a", frozenset({"old"}))
    planner.forget("team-a/a")
    assert planner.claimants("old") == ["team-a/b"]


def test_a_load_wakes_its_own_adapter_alone() -> None:
    before = engine("e", staged(), loaded()).inventory
    other = loaded(adapter="team-a/chat", served_name="team-a/chat")
    after = engine("e", staged(), loaded(), other).inventory
    assert adapters_affected(before, after, in_contact=True) == {"team-a/chat"}


def test_running_requests_wake_nobody_and_a_new_start_of_vllm_wakes_all() -> None:
    before = engine("e", loaded()).inventory
    busy = engine("e", loaded(in_flight=7)).inventory
    assert adapters_affected(before, busy, in_contact=True) == set()
    restarted = engine("e", loaded(), engine_instance="i2").inventory
    assert adapters_affected(before, restarted, in_contact=True) is None
    assert adapters_affected(before, before, in_contact=False) is None


_NAMES = st.sampled_from(["", *"abcdef"])  # what a sidecar has refused is nobody's until it is gone
_SEEN = st.dictionaries(_NAMES, st.tuples(st.integers(0, 2), st.integers(0, 1)))


@given(_SEEN, _SEEN, st.randoms())
def test_a_change_concerns_whose_entries_differ_in_more_than_requests(
    old: dict[str, tuple[int, int]], new: dict[str, tuple[int, int]], order: Random
) -> None:
    def inventory(seen: dict[str, tuple[int, int]]) -> pb.Inventory | None:
        names = order.sample(sorted(seen), len(seen)) if order.random() < 0.5 else sorted(seen)
        entries = [
            loaded(
                adapter=name, served_name=name, digest=f"d{seen[name][0]}", requests=seen[name][1]
            )
            for name in names
        ]
        content = [
            pb.StagedRevision(adapter=name, digest=f"{name}{seen[name][0]}") for name in names
        ]
        return engine("e", *content, *entries).inventory

    found = adapters_affected(inventory(old), inventory(new), in_contact=True)
    versions = [{name: version for name, (version, _) in seen.items()} for seen in (old, new)]
    assert found == {name for name, _ in versions[0].items() ^ versions[1].items()} - {""}


def test_orphans_are_names_of_adapters_that_do_not_exist_in_a_namespace_that_is_served() -> None:
    view = engine(
        "e",
        loaded(),
        loaded(adapter="team-a/gone", served_name="old"),
        loaded(adapter="team-b/other", served_name="other"),
        loaded(adapter="", served_name="by-hand"),
    )
    gone, other = ("team-a/gone", "old"), ("team-b/other", "other")
    assert orphans(view, (), {"team-a/sql"}) == [gone, other], "the whole cluster is served"
    assert orphans(view, ("team-a",), {"team-a/sql"}) == [gone]
    assert orphans(view, (), {"team-a/sql", "team-b/other"}) == [gone]
    silent = engine("e", loaded(adapter="team-a/gone"), problem="no answer")
    assert orphans(silent, (), set()) == []


def test_who_has_adapters_that_do_not_exist_is_known_without_looking_through_the_engines() -> None:
    holders, names = Holders(), {"sql", "chat", "old"}
    there = {"u-0": {"sql"}, "u-1": {"sql", "old"}, "u-2": {"old", "chat"}, "u-3": set[str]()}
    for uid, adapters in there.items():
        entries = [loaded(adapter=name) for name in sorted(adapters)]
        holders.note(uid, pb.Inventory(loaded=entries))
    assert holders.with_others_than(names) == set()
    assert holders.with_others_than(names - {"old"}) == {"u-1", "u-2"}
    assert holders.with_others_than(set()) == {"u-0", "u-1", "u-2"}
    holders.note("u-1", pb.Inventory())
    assert holders.with_others_than(names - {"old"}) == {"u-2"}


def test_a_pool_says_in_the_sidecars_words_what_is_wrong_with_an_engine() -> None:
    text = "engine answered 401: set spec.engine.apiKeySecret"
    refused = engine("e-1", health=pb.ENGINE_HEALTH_REFUSED, health_message=text)
    status = pool_status(pool(), [engine("e-0"), refused], NOW)
    by_type = {entry.type: entry for entry in status.conditions}
    assert by_type["EnginesReady"].reason == "EngineRefused"
    assert by_type["EnginesReady"].message == f"engine e-1: {text}"
    assert status.engines[0].message == text
    assert status.engines_summary == "1/2"


def test_a_pool_says_which_pod_has_no_sidecar_and_what_to_do() -> None:
    metadata = {"namespace": "team-a", "name": "e-1", "uid": "u", "labels": {"app": "vllm"}}
    body = {"metadata": metadata, "status": {"phase": "Running", "podIP": "10.0.0.1"}}
    vllm = {"name": "vllm", "ports": [{"containerPort": 8000}], "env": [{"name": "A"}]}

    def seen(*containers: dict[str, Any], answered: bool = False) -> Any:
        pod = engine_pod({**body, "spec": {"containers": [vllm], "initContainers": containers}})
        view = EngineView(pod, problem="sidecar at 10.0.0.1:7070: connection refused")
        view = replace(view, inventory=pb.Inventory()) if answered else view
        status = pool_status(pool(), [engine("e-0"), view], NOW)
        return next(each for each in status.conditions if each.type == "EnginesReady")

    bare = seen({"name": "download"})
    assert (bare.status, bare.reason) == ("False", "SidecarMissing")
    assert bare.message == (
        "engine e-1: the pod has no sidecar: it gets one when it is made, by its label "
        "lorafleet.dev/engine-pool; delete it, and if the next one has none either, install the "
        "injection or put the snippet in (sidecar at 10.0.0.1:7070: connection refused)"
    )
    by_port = {"name": "mine", "ports": [{"containerPort": 7070}]}
    by_variable = {"name": "mine", "env": [{"name": "LORAFLEET_ARENA_BYTES", "value": "1"}]}
    for each in (seen(by_port), seen(by_variable), seen(answered=True)):
        assert (each.status, each.reason) == ("False", "EngineUnreachable")


def test_a_pool_says_when_an_engine_serves_another_base_model() -> None:
    status = pool_status(pool(baseModel="other/model"), [engine("e-0"), engine("e-1")], NOW)
    found = next(c for c in status.conditions if c.type == "EnginesReady")
    assert (found.status, found.reason) == ("False", "BaseModelMismatch")
    assert found.message == (
        "engine e-0: serves tiny/qwen3-dense, the pool's baseModel is other/model (and 1 more)"
    )


def test_a_pool_says_which_engine_runs_without_the_plugin_and_why() -> None:
    text = "vLLM 0.25.0 is outside 0.26 to 0.33"
    stock = engine("e-0", health=pb.ENGINE_HEALTH_STOCK, plugin_message=text)
    status = pool_status(pool(), [stock], NOW)
    by_type = {entry.type: entry for entry in status.conditions}
    assert by_type["EnginesReady"].status == "True"
    assert (by_type["PluginActive"].status, by_type["PluginActive"].reason) == (
        "False",
        "PluginInactive",
    )
    assert by_type["PluginActive"].message == f"engine e-0: {text}"


def test_a_deletion_is_overdue_by_its_own_timestamp_so_a_restart_does_not_begin_anew() -> None:
    going = adapter().model_copy(
        update={
            "metadata": adapter().metadata.model_copy(
                update={"deletion_timestamp": "2026-11-29T11:58:30Z"}
            )
        }
    )
    silent = Waiting(silent=("engine-0",))
    assert not silent.overdue(going, 120, NOW)
    assert silent.overdue(going, 60, NOW)
    assert not silent.overdue(adapter(), 60, NOW)
    busy = Waiting(busy=("engine-1",))
    assert not busy.overdue(going, 60, NOW), "running requests have 60 s more"
    assert busy.overdue(going, 20, NOW)
    assert str(busy) == "requests still run on engine-1"
    assert not Waiting()


def test_a_status_patch_holds_only_what_changed_and_removes_what_went() -> None:
    old = {"digest": "a", "rank": 8, "engines": [{"podName": "x"}]}
    new = {"digest": "b", "engines": [{"podName": "x"}]}
    assert merge_patch(old, new) == {"digest": "b", "rank": None}
    assert merge_patch(new, new) == {}


def test_a_pod_that_is_being_deleted_is_not_dialled() -> None:
    metadata = {"namespace": "a", "name": "e", "uid": "u", "labels": {"app": "vllm"}}
    body = {"metadata": metadata, "status": {"phase": "Running", "podIP": "10.0.0.1"}}
    assert engine_pod(body).running
    assert engine_pod(body).matches({"app": "vllm"})
    assert not engine_pod(body).matches({})
    going = {**body, "metadata": {**metadata, "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    assert not engine_pod(going).running
