"""Steps on an engine without a live plugin: plain files and vLLM's own load. The caller has the turn.

A new revision is an unload and a load, so its name is away for the time of the load, and vLLM
keeps the old weights until its LRU drops them: the pool's condition says that the plugin is
not live.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from lorafleet.errors import EngineRejected

from lorafleet_sidecar.crashpoint import crash_at

if TYPE_CHECKING:
    from lorafleet_sidecar.desired import Desired, ServedName, Target
    from lorafleet_sidecar.engine import EngineClient
    from lorafleet_sidecar.observed import EngineState
    from lorafleet_sidecar.store import RevisionStore

log = logging.getLogger(__name__)


class StockEngine:
    """Loads and replaces adapters through /v1/load_lora_adapter."""

    def __init__(
        self,
        client: EngineClient,
        desired: Desired,
        store: RevisionStore,
        keep_seconds: float,
    ) -> None:
        self._client = client
        self._api = client.api
        self._desired = desired
        self._store = store
        # vLLM may read a plain directory again while an old request runs, and does not say when
        # the last one ended: files stay this long after their name is gone.
        self._keep_seconds = keep_seconds
        self._unused_since: dict[str, float] = {}

    def satisfied(self, name: ServedName, state: EngineState) -> bool:
        """Whether `state` serves what `name` asks for."""
        if name.coming is not None and name.publish_coming:
            return False
        if name.current is None or name.in_doubt:
            return True
        return _served_digest(name, state) == name.current.digest

    async def bring_up(self, served_name: str) -> None:
        """Serve what the name asks for; a revision that is only prepared becomes plain files."""
        name = self._desired.names[served_name]
        if name.coming is not None and not name.publish_coming:
            await self._store.export_plain(name.coming.digest)
        target = name.goal
        if target is None:
            return
        state = await self._state()
        if _served_digest(name, state) != target.digest:
            if name.in_doubt:
                return
            await self._replace(name, target, state)
        elif target == name.current:
            return
        crash_at("switch.published")
        try:
            await self._api.prove(served_name)
            if name.probe is not None and target == name.coming:
                await self._api.ask(served_name, name.probe)
        except EngineRejected:
            await self._put_back(name, target)
            raise
        crash_at("switch.probed")
        if target == name.coming:
            self._desired.update(served_name, current=target, coming=None, publish_coming=False)
        self._desired.settle_load(target.digest, proved=True)

    async def hide(self, served_name: str) -> None:
        """Take the name away from clients; running requests go on."""
        await self._api.unload(served_name)

    async def sweep(self, only: str | None = None) -> int:
        """Hide names of ours that nobody wants, and remove plain files some time after."""
        state = await self._state()
        for served_name, number in state.served.items():
            if not state.revisions[number].digest or only not in (None, served_name):
                continue
            name = self._desired.names.get(served_name)
            if name is None or name.removing:
                await self._api.unload(served_name)
                crash_at("unload.unloaded")
        await self._remove_unused_files()
        return 0

    async def _state(self) -> EngineState:
        observed = await self._client.observe()
        if observed.state is None:
            raise EngineRejected(observed.message)
        return observed.state

    async def _replace(self, name: ServedName, target: Target, state: EngineState) -> None:
        path = await self._store.export_plain(target.digest)
        if name.served_name in state.served:
            await self._api.unload(name.served_name)
            crash_at("switch.unloaded_previous")
        self._desired.begin_load(target.digest, state.instance)
        try:
            await self._api.load(name.served_name, path)
        except EngineRejected:
            await self._put_back(name, target)
            raise
        crash_at("load.loaded")

    async def _put_back(self, name: ServedName, refused: Target) -> None:
        """Serve the old revision again after the engine refused the new one."""
        await self._api.unload(name.served_name)
        if name.current is not None and name.current.digest != refused.digest:
            path = await self._store.export_plain(name.current.digest)
            await self._api.load(name.served_name, path)

    async def _remove_unused_files(self) -> None:
        wanted = self._desired.digests()
        now = time.monotonic()
        found = set(self._store.plain_exports())
        for digest in self._unused_since.keys() - (found - wanted):
            del self._unused_since[digest]
        for digest in found - wanted:
            since = self._unused_since.setdefault(digest, now)
            if now - since >= self._keep_seconds:
                await self._store.release_plain(digest)
                log.info("removed the plain files of %s", digest[:19])


def _served_digest(name: ServedName, state: EngineState) -> str:
    number = state.served.get(name.served_name)
    return state.revisions[number].digest if number is not None else ""
