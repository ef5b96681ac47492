"""For how long a call that was let in may stay: tokens end, and rights are taken back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from lorafleet.errors import AccessDenied, EngineUnreachable, SourceUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from lorafleet_operator.push.access import Doorkeeper

_AGAIN_SECONDS: Final = 300.0


class Stay:
    """One call that lasts. `rights`: asks whether the account may still do what it does."""

    def __init__(
        self,
        door: Doorkeeper,
        metadata: Mapping[str, str | bytes],
        rights: Callable[[], Awaitable[Any]],
    ) -> None:
        self._door = door
        self._metadata = metadata
        self._rights = rights
        self._asked = asyncio.get_running_loop().time()

    async def check(self) -> None:
        """Ask anew every few minutes. While the API server does not say, what it said last counts.

        Raises AccessDenied; EngineUnreachable when the token is over: a caller that has another by
        now comes again with that, and is refused at the door without.
        """
        now = asyncio.get_running_loop().time()
        if now - self._asked < _AGAIN_SECONDS:
            return
        self._asked = now
        try:
            try:
                await self._door.identify(self._metadata)
            except AccessDenied as error:
                raise EngineUnreachable(f"the call ends, for {error} any more") from None
            await self._rights()
        except SourceUnavailable:
            return
