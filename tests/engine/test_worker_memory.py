"""The worker's memory figures beside the kernel's own: memory_checks.py, where there is no GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import memory_checks
import pytest
import tiny_models

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def engine(in_process: Callable[[str], Any]) -> Iterator[Any]:
    started = in_process("moe")
    yield started
    started.clear()


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("memory") / "adapter"
    return tiny_models.make_adapter(folder, tiny_models.moe_modules(), seed=3, rank=8)


@pytest.mark.parametrize("check", memory_checks.CHECKS, ids=lambda check: check.__name__)
def test_worker_memory(engine: Any, adapter: Path, check: Any) -> None:
    engine.clear()
    check(engine, adapter)
