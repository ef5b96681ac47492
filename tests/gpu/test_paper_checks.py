"""The paper's checks as tests; see paper_checks.py, which also runs without pytest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import paper_checks
import paper_probe
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        started = paper_probe.start(tmp_path_factory.mktemp("checks"))
        assert started.residency.device.type == paper_checks.required_device()
        yield started


@pytest.mark.parametrize("check", paper_checks.CHECKS, ids=lambda check: check.__name__)
def test_paper_check(probe: Any, check: Any) -> None:
    probe.clear()
    check(probe)
