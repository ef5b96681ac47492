"""What most contract tests begin with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sidecar_rig import Rig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def rig(volume: Path) -> AsyncIterator[Rig]:
    """A sidecar beside a fake engine."""
    async with Rig(volume) as running:
        yield running
