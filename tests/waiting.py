"""Waiting for what is to happen: it takes as long as the machine is busy, so deadlines are generous."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


async def until(condition: Callable[[], Any], seconds: float = 120.0) -> None:
    """Wait until `condition()` is true; fail with its source line after `seconds`."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


def eventually(condition: Callable[[], Any], seconds: float = 60.0, what: str = "") -> None:
    """The same for tests that block; fail naming `what`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what or "did not happen"
        time.sleep(0.05)
