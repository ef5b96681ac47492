"""Adapters of any version of the operator are shown; what programs get keeps to the schema."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import kubectl_schema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lorafleet_operator.api.conditions import Reason
from lorafleet_operator.kubectl import adapters, engines, history, ls, rollback
from lorafleet_operator.kubectl.api import Failed
from lorafleet_operator.kubectl.views import VERSION

METADATA = {"namespace": "team-a", "name": "sql", "generation": 2}
A, B, C, D = ("sha256:" + each * 32 for each in ("0a", "0b", "0c", "0d"))
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)
FIELDS = (
    "observedGeneration",
    "digest",
    "servedName",
    "sizeBytes",
    "engines",
    "history",
    "stable",
    "canary",
    "rolledBack",
    "draining",
    "conditions",
)
STATUS = ANYTHING | st.dictionaries(
    st.sampled_from(FIELDS),
    ANYTHING | st.lists(st.dictionaries(st.sampled_from(("podName", "tier", "digest")), ANYTHING)),
)


def check(document: Any, kind: str) -> None:
    jsonschema.validate(document, {**kubectl_schema.schema(), "$ref": f"#/$defs/{kind}"})


def body(**status: Any) -> dict[str, Any]:
    return {"metadata": METADATA, "spec": {"poolRef": {"name": "main"}}, "status": status}


@given(ANYTHING, STATUS)
def test_no_body_stops_a_list_and_all_of_it_keeps_to_the_schema(spec: Any, status: Any) -> None:
    found = {"metadata": METADATA, "spec": spec, "status": status}
    document = {"apiVersion": VERSION, "kind": "AdapterList", "adapters": [adapters.view(found)]}
    check(document, "AdapterList")
    check(history.history(found), "History")
    assert len(ls.row(adapters.view(found), everywhere=True, wide=True)) == len(
        ls.head(everywhere=True, wide=True)
    )


@pytest.mark.parametrize("status", [{}, {"status": None}, {"status": {}}])
def test_an_adapter_without_a_status_is_one_that_nobody_has_looked_at(status: Any) -> None:
    found = adapters.view({"metadata": METADATA, "spec": {}, **status})
    assert (found["ready"], found["observed"], found["readyEngines"]) == ("", False, 0)
    assert ls.row(found, everywhere=False, wide=False)[4] == "NotLookedAt"


def test_what_a_newer_operator_says_is_shown_as_it_stands() -> None:
    ready = {"type": "Ready", "status": "False", "reason": "Dreaming", "message": "of sheep"}
    engine = {"podName": "e", "tier": "orbit", "published": True, "inFlight": 3}
    found = adapters.view(body(conditions=[ready], engines=[engine], moons=4))
    assert (found["reason"], found["message"], found["inFlight"]) == ("Dreaming", "of sheep", 3)
    assert set(found["tiers"].values()) == {0}


UPDATE = body(
    digest=A,
    stable={"digest": B},
    history=[B, C],
    canary={"digest": A, "since": "2026-01-01T00:00:00Z"},
    rolledBack={"digest": D, "message": "no", "time": "2026-01-02T00:00:00Z"},
    draining=[{"digest": C, "engines": 1, "inFlight": 2}],
    engines=[{"podName": "e", "digest": A, "published": True, "inFlight": 1}],
)


def test_the_history_tells_what_each_revision_is() -> None:
    found = {each["digest"]: each for each in adapters.revisions(UPDATE)}
    assert {digest: each["state"] for digest, each in found.items()} == {
        A: "trial",
        B: "earlier",
        C: "earlier",
        D: "given up",
    }
    assert [each["staged"] for each in found.values()] == [True, True, True, None]
    assert [each["inFlight"] for each in found.values()] == [1, None, 2, None]
    assert [digest for digest, each in found.items() if each["stable"]] == [B]


def test_who_asked_is_the_newest_writer_of_the_field_and_never_of_a_status() -> None:
    def wrote(manager: str, time: str, spec: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"manager": manager, "time": time, "fieldsV1": {"f:spec": spec}, **more}

    managed = [
        wrote("helm", "2026-01-01T00:00:00Z", {"f:source": {}, "f:revision": {}}),
        wrote("kubectl-lora", "2026-01-02T00:00:00Z", {"f:revision": {}}),
        wrote("evil", "2026-01-03T00:00:00Z", {"f:revision": {}}, subresource="status"),
    ]
    found = {**UPDATE, "metadata": {**METADATA, "managedFields": managed}}
    assert adapters.asked_by(found, "revision") == ("kubectl-lora", "2026-01-02T00:00:00Z")
    assert adapters.asked_by(found, "source")[0] == "helm"


@pytest.mark.parametrize(
    ("to", "digest"),
    [("", B), ("0c0c", C), (C, C), ("SHA256:" + "0b" * 32, None), ("0b0b0b", B), ("source", "")],
)
def test_a_revision_is_named_by_its_beginning(to: str, digest: str | None) -> None:
    if digest is None:
        with pytest.raises(Failed, match="it has no revision"):
            rollback.target(UPDATE, to)
    else:
        assert rollback.target(UPDATE, to) == digest


@pytest.mark.parametrize(
    ("to", "said"),
    [
        ("0b", "revision '0b' is too short: give at least 4 digits"),
        ("0d0d", "it has no revision 0d0d; there are: 0a0a0a0a0a0a (current), 0b0b0b0b0b0b, 0c0c0c0c0c0c"),
        ("ffff", "it has no revision ffff; there are: 0a0a0a0a0a0a (current), 0b0b0b0b0b0b, 0c0c0c0c0c0c"),
    ],
)  # fmt: skip
def test_a_revision_that_cannot_be_served_is_refused_with_those_that_can(
    to: str, said: str
) -> None:
    with pytest.raises(Failed) as refused:
        rollback.target(UPDATE, to)
    assert str(refused.value) == said


def test_a_beginning_of_two_revisions_is_refused() -> None:
    twin = A[:-1] + "b"
    with pytest.raises(Failed, match="0a0a may be any of"):
        rollback.target(body(digest=A, history=[twin]), "0a0a")


READY = {"type": "Ready", "status": "True", "reason": "Ready", "observedGeneration": 2}


@pytest.mark.parametrize(
    ("spec", "status", "standing"),
    [
        ({}, {}, (False, "the operator has not looked at it yet", False)),
        ({}, {"observedGeneration": 1, "conditions": [READY]},
         (False, "the operator has not looked at it yet", False)),
        ({}, {"observedGeneration": 2, "conditions": [READY]}, (True, "Ready", False)),
        ({"revision": B}, {"observedGeneration": 2, "digest": A, "conditions": [READY]},
         (False, "Ready", False)),
        ({"revision": B}, {"observedGeneration": 2, "digest": B, "conditions": [READY]},
         (True, "Ready", False)),
        ({}, {"observedGeneration": 2, "conditions": [
            {**READY, "status": "False", "reason": "RevisionNotStaged", "message": "gone"}]},
         (False, "RevisionNotStaged: gone", True)),
    ],
)  # fmt: skip
def test_it_is_done_when_the_operator_says_ready_of_this_spec(
    spec: Any, status: Any, standing: Any
) -> None:
    found = {"metadata": METADATA, "spec": spec, "status": status}
    assert rollback.standing(found, 2) == standing


def test_what_does_not_pass_by_waiting_is_a_reason_of_the_operator() -> None:
    assert set(Reason) >= rollback.HOPELESS


METRICS = """
# TYPE lorafleet_engine_loads_total counter
lorafleet_engine_loads_total{rank="0"} 7.0
lorafleet_engine_loads_total{rank="1"} 7.0
lorafleet_engine_evictions_total{rank="0",tier="host"} 2.0
lorafleet_engine_evictions_total{rank="1",tier="host"} 3.0
lorafleet_engine_pinned_bytes{rank="0",kind="arena"} 100.0
lorafleet_engine_pinned_bytes{rank="1",kind="arena"} 100.0
lorafleet_engine_pinned_bytes{rank="0",kind="copy"} 5.0
lorafleet_engine_pinned_bytes{rank="1",kind="copy"} 5.0
lorafleet_engine_adapters{tier="gpu"} 2
lorafleet_engine_adapters{tier="host"} 9
lorafleet_engine_requests_in_flight 4
lorafleet_engine_slots not-a-number
"""


def test_the_sidecars_metrics_count_the_arena_once_and_each_ranks_copies() -> None:
    assert engines.parsed(METRICS) == {
        "slotsUsed": 2,
        "pinnedBytes": 110,
        "loads": 7,
        "evictions": 3,
        "inFlight": 4,
    }


@given(st.text())
def test_whatever_a_sidecar_answers_stops_nobody(text: str) -> None:
    engines.parsed(text)
    engines.parsed(f"lorafleet_engine_slots {text}\nlorafleet_engine_slots nan")


def test_the_documented_schema_is_current() -> None:
    assert json.loads(kubectl_schema.PAGE.read_text()) == kubectl_schema.schema(), (
        "run hack/kubectl_schema.py"
    )
