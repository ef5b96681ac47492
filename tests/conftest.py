"""What all tests share: hypothesis judges results, never the speed of the machine; a pod's volume."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import lorafleet  # noqa: F401  # before any test imports gRPC
import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Iterator

MEMORY = Path("/dev/shm")

settings.register_profile(
    "lorafleet",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
    # A landing must not hang on the day's luck; everywhere else each run looks somewhere new.
    derandomize="CI" in os.environ,
)
settings.load_profile("lorafleet")


@pytest.fixture
def volume() -> Iterator[Path]:
    """A volume on memory, as in a pod; removed with its arena after each test."""
    parent = MEMORY if MEMORY.is_dir() else None
    path = Path(tempfile.mkdtemp(prefix="lorafleet-test-", dir=parent))
    yield path
    shutil.rmtree(path)
