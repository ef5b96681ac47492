"""How long what a look at a source found counts, and what an engine refused."""

from __future__ import annotations

from lorafleet.errors import EngineRejected, SourceUnavailable
from lorafleet_operator.memory import TRIES, Look, Memory


def test_a_failed_look_counts_for_its_patience_and_failures_are_counted_for_one_spec() -> None:
    memory = Memory()
    failed = Look(1, at=100.0, error=SourceUnavailable("away"), failures=3, patience=10.0)
    memory.keep_look("uid", failed)
    assert memory.look("uid", 1, 109.9, poll_seconds=1) is failed
    assert memory.look("uid", 1, 110.0, poll_seconds=0) is None
    assert memory.look("uid", 2, 100.0, poll_seconds=1) is None
    assert (memory.failures("uid", 1), memory.failures("uid", 2)) == (3, 0)
    found = Look(1, at=200.0, fingerprint="fp")
    memory.keep_look("uid", found)
    assert memory.failures("uid", 1) == 0
    assert memory.look("uid", 1, 1e9, poll_seconds=0) is found
    assert memory.look("uid", 1, 260.0, poll_seconds=60) is None


def test_what_an_engine_refuses_counts_until_it_starts_again_and_is_kept_once() -> None:
    memory, error = Memory(), EngineRejected("no room")
    for start in range(50):
        engine = f"pod/{start}"
        memory.keep_refusal("uid", engine, 1, "fp", error)
        memory.count_failure("uid", engine, 1, "fp")
        assert memory.refusal("uid", engine, 1, "fp") is error
        assert memory.failures_of("uid", engine, 1, "fp") == 1
        assert memory.refusal("uid", f"pod/{start - 1}", 1, "fp") is None
    memory.count_failure("uid", "pod/49", 1, "fp")
    assert memory.failures_of("uid", "pod/49", 1, "fp") == 2
    assert memory.failures_of("uid", "pod/49", 2, "fp") == 0
    assert memory.refusing("uid") == {"pod"}
    kept = [each._kept["uid"]["pod"] for each in (memory._refusals, memory._failures)]
    assert [len(each) for each in kept] == [1, 1]


def test_two_contents_that_an_engine_is_asked_to_load_by_turns_are_counted_each_for_itself() -> (
    None
):
    memory = Memory()
    for turn in range(TRIES):
        for content in ("decided", "newest"):
            assert not memory.gave_up("uid", "pod/1", 1, content)
            memory.count_failure("uid", "pod/1", 1, content)
            assert memory.failures_of("uid", "pod/1", 1, content) == turn + 1
    assert memory.gave_up("uid", "pod/1", 1, "decided")
    assert memory.gave_up("uid", "pod/1", 1, "newest")
    for number in range(50):  # a source that changes and changes
        memory.count_failure("uid", "pod/1", 1, f"later-{number}")
    assert len(memory._failures._kept["uid"]["pod"]) == 4
