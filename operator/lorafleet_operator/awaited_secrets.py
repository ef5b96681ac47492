"""Secrets that somebody waits for: asked after by name, so that a corrected one is used at once.

The framework's watch would need the right to list Secrets, which no rule can narrow to those that
adapters name: the operator could then read every Secret of the namespace. `get` of a known name is
enough here, and the API server is asked for the metadata only. Nobody waits while the sources
answer: then nothing is asked, and a changed Secret is read at the source's next look anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, NamedTuple

from lorafleet_operator.cluster.requests import NoAnswer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Referenced(NamedTuple):
    """A Secret and the version of it that was used, "" if there was none."""

    namespace: str
    name: str
    version: str


class AwaitedSecrets:
    """Who waits for another version of which Secret.

    ask: returns the present version. wake: called once for each adapter whose Secret is another
    than the one that it follows. All are asked after one by one, then there is a pause.
    """

    def __init__(
        self,
        ask: Callable[[str, str], Awaitable[str]],
        wake: Callable[[str], None],
        pause_seconds: float = 1.0,
    ) -> None:
        self._ask = ask
        self._wake = wake
        self._pause_seconds = pause_seconds
        self._followed: dict[str, Referenced] = {}
        self._rounds: asyncio.Task[None] | None = None

    def follow(self, adapter: str, secret: Referenced | None) -> None:
        """Wake the adapter when its Secret changes, comes or goes; None ends that."""
        if secret is None:
            self._followed.pop(adapter, None)
            return
        self._followed[adapter] = secret
        if self._rounds is None or self._rounds.done():
            self._rounds = asyncio.create_task(self._ask_in_rounds(), name="secrets")

    def follows(self, adapter: str) -> bool:
        """Return whether the adapter waits, and its Secret is the one that it used."""
        return adapter in self._followed

    async def close(self) -> None:
        """End the questions."""
        if self._rounds is not None:
            self._rounds.cancel()
            await asyncio.gather(self._rounds, return_exceptions=True)

    async def _ask_in_rounds(self) -> None:
        """Ask until nobody waits."""
        while self._followed:
            await asyncio.sleep(self._pause_seconds)
            for namespace, name in {
                (each.namespace, each.name) for each in self._followed.values()
            }:
                # Without an answer the next round asks again.
                with contextlib.suppress(NoAnswer):
                    self._compare(namespace, name, await self._ask(namespace, name))

    def _compare(self, namespace: str, name: str, version: str) -> None:
        for adapter, used in list(self._followed.items()):
            if used[:2] == (namespace, name) and used.version != version:
                del self._followed[adapter]
                self._wake(adapter)
