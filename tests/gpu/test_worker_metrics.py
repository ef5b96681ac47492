"""The worker's memory figures on a GPU; see memory_checks.py, which also runs without pytest."""

from __future__ import annotations

from typing import Any

import memory_checks
import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def adapter(started: Any) -> Any:
    folder, _ = started.adapter("metrics", rank=16, alpha=32)
    return folder


@pytest.mark.parametrize("check", memory_checks.CHECKS, ids=lambda check: check.__name__)
def test_worker_metrics(probe: Any, adapter: Any, check: Any) -> None:
    check(probe, adapter)
