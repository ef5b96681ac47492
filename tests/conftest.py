"""What all tests share: hypothesis judges results, never the speed of the machine; a pod's volume."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import lorafleet  # noqa: F401  # before any test imports gRPC
import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

MEMORY = Path("/dev/shm")

settings.register_profile(
    "lorafleet",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
    # A landing must not hang on the day's luck; everywhere else each run looks somewhere new.
    # Nobody after this knows of CI: there pytest would compare what differs byte by byte and print
    # all of it, which for an adapter of 8 MiB takes minutes and as many lines.
    derandomize=os.environ.pop("CI", None) is not None,
)
settings.load_profile("lorafleet")

# A shell lets what it starts in the background ignore interrupts, and with it what tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Whoever ends a run ends what its tests started, which is in sessions of its own.
signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))

_LOG_BYTES = 6000


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the ends of what the processes of a failed test wrote: CI keeps no files."""
    report = yield
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if report.failed and folder is not None:
        for log in sorted(folder.rglob("*.log")):
            tail = log.read_bytes()[-_LOG_BYTES:].decode(errors="replace")
            report.sections.append((f"end of {log.relative_to(folder)}", tail))
    return report


@pytest.fixture
def volume() -> Iterator[Path]:
    """A volume on memory, as in a pod; removed with its arena after each test."""
    parent = MEMORY if MEMORY.is_dir() else None
    path = Path(tempfile.mkdtemp(prefix="lorafleet-test-", dir=parent))
    yield path
    shutil.rmtree(path)
