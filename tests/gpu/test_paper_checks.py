"""The paper's checks as tests; see paper_checks.py, which also runs without pytest."""

from __future__ import annotations

from typing import Any

import paper_checks
import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("check", paper_checks.CHECKS, ids=lambda check: check.__name__)
def test_paper_check(probe: Any, check: Any) -> None:
    check(probe)
