"""The time by which things are decided does not jump, and nothing is decided by another."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import lorafleet_operator
from lorafleet_operator import clock
from lorafleet_operator.clock import SteadyClock

SAYS = {
    "checkup.py": "whether a lease that somebody wrote is over",
    "clock.py": "the start",
    "cluster/writes.py": "times of Events",
    "kubectl/text.py": "ages",
    "pool_pass.py": "times of conditions",
    "push/spool.py": "ages of files, which the file system stamps",
    "reconcile.py": "when a decision was told",
    "report.py": "times of conditions",
    "sources/azure_blob.py": "until when a signature holds, for the server",
    "sources/retries.py": "a time that a server names",
    "tenure.py": "a lease's stamp: others see only that it changes",
}
"""Modules that read the wall clock, and for what."""


def test_a_jump_of_the_wall_clock_is_not_seen_and_a_suspension_is() -> None:
    wall, passed = [datetime(2026, 1, 1, tzinfo=UTC)], [1000.0]
    steady = SteadyClock(lambda: wall[0], lambda: passed[0])
    assert steady.now() == wall[0]
    wall[0] += timedelta(hours=1)
    assert steady.now() == datetime(2026, 1, 1, tzinfo=UTC)
    passed[0] += 90.0
    assert steady.now() == datetime(2026, 1, 1, 0, 1, 30, tzinfo=UTC)


def test_it_tells_the_time_of_day() -> None:
    assert abs(clock.now() - datetime.now(UTC)) < timedelta(minutes=10)


def test_nothing_is_decided_by_the_wall_clock() -> None:
    root = Path(lorafleet_operator.__file__).parent
    reads = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if any(word in path.read_text() for word in ("datetime.now(", "time.time(", "utcnow("))
    }
    assert reads == set(SAYS)
