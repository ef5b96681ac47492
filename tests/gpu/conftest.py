"""One engine of the small MoE model for all tests of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import paper_checks
import paper_probe
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        engine = paper_probe.start(tmp_path_factory.mktemp("checks"))
        assert engine.residency.device.type == paper_checks.required_device()
        yield engine


@pytest.fixture
def probe(started: Any) -> Any:
    started.clear()
    return started
