"""A volume on memory, as in a pod; removed with its arena after each test."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

MEMORY = Path("/dev/shm")


@pytest.fixture
def volume() -> Iterator[Path]:
    parent = MEMORY if MEMORY.is_dir() else None
    path = Path(tempfile.mkdtemp(prefix="lorafleet-test-", dir=parent))
    yield path
    shutil.rmtree(path)
