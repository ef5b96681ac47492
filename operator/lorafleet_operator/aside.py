"""Large work off the event loop, small work on it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_P = ParamSpec("_P")
_T = TypeVar("_T")
_LARGE_BYTES: Final = 64 << 10
"""A header of this size is parsed in about a millisecond. A thread waits up to five for its turn
beside a busy loop, and thousands of small adapters would wait so several times each."""


async def aside(size: int, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Return `work(...)`, done in a thread if the input that it works on has many bytes."""
    if size < _LARGE_BYTES:
        return work(*args, **kwargs)
    return await asyncio.to_thread(work, *args, **kwargs)
