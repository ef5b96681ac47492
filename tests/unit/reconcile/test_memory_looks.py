"""How long what a look at a source found counts."""

from __future__ import annotations

from lorafleet.errors import SourceUnavailable
from lorafleet_operator.memory import Look, Memory


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
