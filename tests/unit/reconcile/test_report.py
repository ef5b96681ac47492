"""What a pass says: one table from facts to the condition that people read first."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from lorafleet.errors import (
    AccessDenied,
    EngineRejected,
    InvalidAdapter,
    LorafleetError,
    RankTooHigh,
    SourceUnavailable,
    TransferInterrupted,
)
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from lorafleet_operator.api.conditions import Reason
from lorafleet_operator.facts import Facts, Placed
from lorafleet_operator.memory import Verdict
from lorafleet_operator.report import failed, report, transitions
from operator_builders import DIGEST, OLD, adapter, engine, facts, loaded, staged

if TYPE_CHECKING:
    from lorafleet_operator.api.meta import Condition

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
GOOD = Verdict(size_bytes=2 << 20, rank=8)


def conditions(of: Facts) -> dict[str, Condition]:
    return {entry.type: entry for entry in report(of, NOW).status.conditions}


def with_verdicts(of: Facts, error: LorafleetError | None = None) -> Facts:
    of.verdicts = {view.uid: replace(GOOD, error=error) for view in of.engines}
    return of


SERVING = engine("engine-0", staged(), loaded())
STARTING = engine(
    "engine-0", staged(), health=pb.ENGINE_HEALTH_STARTING, health_message="vLLM is starting"
)
REFUSAL = InvalidAdapter("adapter team-a/sql: no LoRA tensors in adapter_model.safetensors")
NO_GRANT = (Reason.NOT_GRANTED, "namespace b holds no AdapterGrant from namespace team-a")
NO_PLACE = Placed(wanted=1, blocked=(Reason.NO_CAPACITY, "0 of 1 engines: engine-0: full"))

TABLE = {
    "an adapter that all engines serve is Ready": (
        with_verdicts(facts(SERVING)),
        ("True", "Ready", "all engines serve"),
    ),
    "a source that refuses its credentials is named": (
        facts(engine(), fingerprint="", source_error=AccessDenied("403 from example.test")),
        ("False", "AccessDenied", "403 from example.test"),
    ),
    "a source that is away does not matter while all engines serve what it held": (
        facts(SERVING, source_error=SourceUnavailable("no answer")),
        ("True", "Ready", "all engines serve"),
    ),
    "a source that is away matters for an engine that lacks the content": (
        facts(engine(), source_error=SourceUnavailable("no answer")),
        ("False", "SourceUnavailable", "no answer"),
    ),
    "a bad adapter says what is bad, and what is served instead": (
        with_verdicts(facts(engine("engine-0", staged(OLD, "fp-0"), loaded(OLD))), REFUSAL),
        ("False", "InvalidAdapter", f"; {OLD[:19]} keeps serving team-a/sql"),
    ),
    "no room": (
        with_verdicts(facts(engine(), placed=NO_PLACE)),
        ("False", "NoCapacity", "engine-0: full"),
    ),
    "content on its way": (with_verdicts(facts(engine())), ("False", "Staging", "1 of 1 engines")),
    "a revision that is staged only": (
        with_verdicts(facts(engine("engine-0", staged()))),
        ("False", "Loading", "1 of 1 engines"),
    ),
    "loaded everywhere but not published everywhere is not Ready": (
        with_verdicts(facts(engine("engine-0", staged(), loaded(published=False)))),
        ("False", "Loading", "0 of 1 engines serve team-a/sql"),
    ),
    "an engine that restarts takes the readiness away": (
        with_verdicts(facts(STARTING)),
        ("False", "EngineUnreachable", "engine engine-0: vLLM is starting"),
    ),
    "a transfer that broke": (
        with_verdicts(facts(engine(), troubles={"uid-engine-0": TransferInterrupted("broke")})),
        ("False", "TransferInterrupted", "engine engine-0: broke"),
    ),
    "an engine that refuses says so in its own words": (
        with_verdicts(
            facts(
                engine("engine-0", staged()), troubles={"uid-engine-0": EngineRejected("vLLM: no")}
            )
        ),
        ("False", "EngineRejected", "engine engine-0: vLLM: no"),
    ),
    "a revision that the spec names, in a pool that does not exist": (
        facts(
            pool=None,
            fingerprint="",
            adapter=adapter(revision=DIGEST),
            not_staged=f"{DIGEST} is staged on no engine any more",
            placed=Placed(blocked=(Reason.POOL_NOT_FOUND, "EnginePool team-a/pool does not exist")),
        ),
        ("False", "PoolNotFound", "EnginePool team-a/pool does not exist"),
    ),
    "an adapter whose grant was taken back": (
        facts(pool=None, placed=Placed(blocked=NO_GRANT, lost_name=True)),
        ("False", "NotGranted", "holds no AdapterGrant"),
    ),
    "nothing known yet": (
        facts(engine(), fingerprint="", placed=Placed(pods=("engine-0",), wanted=1)),
        ("Unknown", "Resolving", "has not been read"),
    ),
}


@pytest.mark.parametrize("sentence", TABLE)
def test_ready_says(sentence: str) -> None:
    given, (status, reason, text) = TABLE[sentence]
    ready = conditions(given)["Ready"]
    assert (ready.status, ready.reason) == (status, reason)
    assert text in ready.message
    assert "\n" not in ready.message


TOO_SMALL = RankTooHigh("adapter team-a/sql: LoRA rank 16 is greater than max_lora_rank 8")


def test_engines_that_cannot_take_it_are_told_of_where_others_serve_it() -> None:
    serving = engine("engine-1", staged(), loaded())
    refused = {"engine-0": str(TOO_SMALL), "engine-2": str(TOO_SMALL)}
    given = with_verdicts(
        facts(
            engine("engine-0"),
            serving,
            placed=Placed(pods=("engine-1",), wanted=1, refused=refused),
            refusals={"uid-engine-0": TOO_SMALL},
        )
    )
    given.verdicts["uid-engine-0"] = Verdict(error=TOO_SMALL)
    found = conditions(given)
    assert (found["Ready"].status, found["SourceResolved"].status) == ("True", "True")
    assert found["Placed"].message == (
        f"on engine-1; 2 other engines cannot take it: engine-0: {TOO_SMALL}"
    )


def test_an_engine_that_serves_it_and_refuses_what_is_new_keeps_it_from_being_ready() -> None:
    given = with_verdicts(
        facts(
            engine("engine-0", staged(OLD, "fp-0"), loaded(OLD)),
            engine("engine-1", staged(), loaded()),
            refusals={"uid-engine-0": TOO_SMALL},
        )
    )
    given.verdicts["uid-engine-0"] = Verdict(error=TOO_SMALL)
    ready = conditions(given)["Ready"]
    assert (ready.status, ready.reason) == ("False", "RankTooHigh")
    assert ready.message == f"{TOO_SMALL}; {OLD[:19]} keeps serving team-a/sql"


def test_a_name_that_is_anothers_is_not_in_the_status() -> None:
    kept = report(with_verdicts(facts(SERVING)), NOW).status
    assert (kept.served_name, kept.pool) == ("team-a/sql", "team-a/pool")
    lost = report(facts(engine(), placed=Placed(blocked=NO_GRANT, lost_name=True)), NOW).status
    assert (lost.served_name, lost.pool) == ("", "")


def test_a_paused_adapter_says_so_and_what_else_is_wrong() -> None:
    paused = adapter()
    paused.metadata.annotations["lorafleet.dev/paused"] = "true"
    ready = conditions(with_verdicts(facts(engine(), adapter=paused)))["Ready"]
    assert (ready.status, ready.reason) == ("False", "Paused")
    assert "Staging" in ready.message


def test_a_refusal_in_phase_one_is_in_loaded_and_counts_no_retry() -> None:
    refused = facts(
        engine("engine-0", staged(), loaded(OLD), loaded(published=False)),
        engine("engine-1", staged(), loaded(OLD)),
        troubles={"uid-engine-1": InvalidAdapter("adapter team-a/sql: non-finite values in x")},
        refusals={"uid-engine-1": InvalidAdapter("adapter team-a/sql: non-finite values in x")},
    )
    found = report(with_verdicts(refused), NOW)
    by_type = {entry.type: entry for entry in found.status.conditions}
    assert by_type["Loaded"].message.startswith("engine engine-1: adapter team-a/sql: non-finite")
    assert "keeps serving" in by_type["Loaded"].message
    assert not found.retry
    assert found.status.ready_engines == 0


def test_status_counts_engines_and_names_those_in_trouble_first() -> None:
    away = engine("engine-1", staged(), loaded(), problem="no answer")
    status = report(with_verdicts(facts(SERVING, away)), NOW).status
    assert (status.ready_engines, status.desired_engines) == (1, 2)
    assert status.engines_summary == "1/2"
    assert [entry.pod_name for entry in status.engines] == ["engine-1", "engine-0"]
    assert not status.engines[0].published
    assert status.engines[0].message == "no answer"


def test_status_keeps_at_most_a_hundred_engines_and_exact_counts() -> None:
    many = [engine(f"engine-{i}", staged(), loaded()) for i in range(130)]
    status = report(with_verdicts(facts(*many)), NOW).status
    assert len(status.engines) == 100
    assert status.ready_engines == 130


def test_a_second_report_of_the_same_facts_changes_nothing() -> None:
    first = report(with_verdicts(facts(SERVING)), NOW).status
    later = facts(SERVING, adapter=adapter(status=first.to_api()))
    again = report(with_verdicts(later), NOW + timedelta(minutes=5)).status
    assert again.to_api() == first.to_api()
    assert transitions(first.conditions, again.conditions) == []


def test_history_keeps_earlier_revisions_that_are_still_staged() -> None:
    was = adapter(status={"digest": OLD, "history": ["sha256:gone"]})
    status = report(
        with_verdicts(
            facts(engine("engine-0", staged(), staged(OLD, "fp-0"), loaded()), adapter=was)
        ),
        NOW,
    ).status
    assert status.digest == DIGEST
    assert status.history == [OLD]


def test_people_hear_of_failures_and_of_readiness_but_not_of_steps_on_the_way() -> None:
    waiting = report(with_verdicts(facts(engine())), NOW).status.conditions
    assert transitions([], waiting) == []
    ready = report(with_verdicts(facts(SERVING)), NOW).status.conditions
    assert [entry.reason for entry in transitions(waiting, ready)] == ["Ready"]
    failed = report(with_verdicts(facts(engine()), REFUSAL), NOW).status.conditions
    assert {entry.reason for entry in transitions(ready, failed)} == {"InvalidAdapter"}


def test_an_unexpected_error_is_told_by_its_kind_alone_and_leaves_the_rest_as_it_was() -> None:
    before = report(with_verdicts(facts(SERVING)), NOW).status
    made = adapter(status=before.to_api())
    said = failed(made, KeyError("what nobody has looked at"), NOW)
    assert (said.retry, said.error_reason) == (True, "InternalError")
    told = {entry.type: entry for entry in said.status.conditions}
    for type_ in ("Loaded", "Ready"):
        assert (told[type_].status, told[type_].reason) == ("False", "InternalError")
        text = "the operator failed unexpectedly (KeyError); its log says more"
        assert told[type_].message == text
    assert told["SourceResolved"].status == "True"
    assert said.status.digest == before.digest
