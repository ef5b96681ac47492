"""The same for trainers that have an event loop: everything that blocks runs in threads."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from lorafleet.push.fleet import Fleet

if TYPE_CHECKING:
    from lorafleet.push.background import Pending
    from lorafleet.push.revision import Engines, Revision
    from lorafleet.push.safe_point import SafePoint


class AsyncRevision:
    """A pushed revision; `revision` has its figures."""

    def __init__(self, revision: Revision) -> None:
        self.revision = revision

    async def wait(self, engines: Engines = "all", timeout: float = 300.0) -> Self:  # noqa: ASYNC109 - as Revision.wait
        """As Revision.wait."""
        await asyncio.to_thread(self.revision.wait, engines, timeout)
        return self

    async def staleness(self) -> dict[str, int | None]:
        """As Revision.staleness."""
        return await asyncio.to_thread(self.revision.staleness)

    async def pinned(self, engine: str = "") -> str:
        """As Revision.pinned."""
        return await asyncio.to_thread(self.revision.pinned, engine)


class AsyncFleet:
    """As Fleet, with the same arguments."""

    def __init__(self, address: str, namespace: str = "", **options: Any) -> None:
        self._fleet = Fleet(address, namespace, **options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._fleet.close)

    async def push(self, what: Any, **options: Any) -> AsyncRevision | None:
        """As Fleet.push. The model must not change until it returns."""
        pushed = await asyncio.to_thread(partial(self._fleet.push, what, **options))
        return None if pushed is None else AsyncRevision(pushed)

    async def push_later(self, what: Any, **options: Any) -> Pending | None:
        """As Fleet.push_later."""
        return await asyncio.to_thread(partial(self._fleet.push_later, what, **options))

    async def safe_point(self, name: str = "", timeout: float = 3600.0) -> SafePoint:  # noqa: ASYNC109 - as Fleet's
        """As Fleet.safe_point; one that is cancelled is closed."""
        opening = self._fleet.opening(name, timeout)
        try:
            return await asyncio.to_thread(opening.wait)
        finally:
            opening.close()
