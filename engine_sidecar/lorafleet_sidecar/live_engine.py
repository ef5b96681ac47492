"""Steps on an engine whose plugin is live. The caller has the engine's turn.

Nothing here remembers a step: each method reads the engine's state, compares it with the
desired table and does what is missing, so that it can be repeated after any crash.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from lorafleet import pinned_names
from lorafleet.errors import EngineRejected

from lorafleet_sidecar.crashpoint import crash_at
from lorafleet_sidecar.desired import Probe, Target

if TYPE_CHECKING:
    from lorafleet_sidecar.desired import Desired, ServedName
    from lorafleet_sidecar.engine import EngineClient
    from lorafleet_sidecar.observed import EngineRevision, EngineState

log = logging.getLogger(__name__)

_ANYTHING: Final = Probe("Hello")


class LiveEngine:
    """Loads, switches and retires revisions through the plugin's control socket."""

    def __init__(self, client: EngineClient, desired: Desired, abort_seconds: float) -> None:
        self._control = client.control
        self._api = client.api
        self._desired = desired
        self._abort_seconds = abort_seconds  # for what no name is left of
        self._unwanted_since: dict[tuple[str, int], float] = {}  # by instance and id
        self._answered: set[tuple[str, int]] = set()  # ids that gave the probe's answer
        self.replaced: set[str] = set()  # digests that were unloaded because others took their name

    def satisfied(self, name: ServedName, state: EngineState) -> bool:
        """Whether `state` has all that `name` asks for, so that `bring_up` would do nothing."""
        if name.on_demand and not state.has_any(name.served_name):
            return True  # a request that asks for it has it loaded
        if name.coming is not None and name.publish_coming:
            return False
        for target in name.targets():
            revision = state.find(name.served_name, target.digest, target.loader)
            if revision is None or revision.residency != name.residency or not revision.verified:
                return False
            served = state.served.get(name.served_name) == revision.lora_int_id
            if target == name.current and not served and not name.in_doubt:
                return False
        return True

    async def bring_up(self, served_name: str) -> None:
        """Load what the name asks for and, unless it is only prepared, publish and prove it.

        Raises EngineRejected when the engine refuses (the name is back on its old revision) and
        EngineUnreachable when the outcome is unknown.
        """
        desired = self._desired
        name = desired.names[served_name]
        for target, publish in name.steps:
            await self._ensure(name, target, publish=publish)
            if publish and target == name.coming:
                desired.update(served_name, current=target, coming=None, publish_coming=False)

    async def hide(self, served_name: str) -> None:
        """Take the name away from clients; running requests go on."""
        await self._control.unpublish(served_name)

    async def sweep(self, only: str | None = None) -> int:
        """Unload the revisions of ours that nobody wants and no request runs on.

        Returns how many unwanted ones remain because requests still run on them. `only` limits
        it to one served name.
        """
        state = await self._control.state()
        remaining = 0
        for revision in state.revisions.values():
            if not revision.digest or only not in (None, revision.served_name):
                continue
            name = self._desired.names.get(revision.served_name)
            if name is not None and Target(revision.digest, revision.loader) in name.targets():
                continue
            if state.served.get(revision.served_name) == revision.lora_int_id:
                remaining += 1
                continue
            if revision.in_flight or not await self._control.unload(revision.lora_int_id):
                await self._abort_overdue(name, revision, state.instance)
                remaining += 1
                continue
            self._unwanted_since.pop((state.instance, revision.lora_int_id), None)
            if name is not None and not name.removing:
                self.replaced.add(revision.digest)
            log.info("unloaded %s of %s", revision.digest[:19], revision.served_name)
            removing = name is None or name.removing
            crash_at("unload.unloaded" if removing else "switch.unloaded_previous")
        return remaining

    async def _abort_overdue(
        self, name: ServedName | None, revision: EngineRevision, instance: str
    ) -> None:
        """End the requests of a revision that has drained for as long as they may take.

        Counted from the first sight of them: a restart of the sidecar begins anew.
        """
        key = (instance, revision.lora_int_id)
        self._unwanted_since = {k: t for k, t in self._unwanted_since.items() if k[0] == instance}
        since = self._unwanted_since.setdefault(key, time.monotonic())
        limit = self._abort_seconds if name is None else name.abort_seconds
        if limit is None or time.monotonic() - since < limit:
            return
        aborted = await self._control.abort(revision.lora_int_id)
        if aborted:
            log.warning(
                "aborted %d requests that ran on %s of %s for more than %g s after it was replaced",
                *(aborted, revision.digest[:19], revision.served_name, limit),
            )

    async def _ask(self, name: ServedName, target: Target, key: tuple[str, int]) -> None:
        """Ask what the name's probe asks, once; a revision that answers otherwise is not wanted.

        One that will be published without a way back has to answer anything.
        """
        probe = name.probe or (_ANYTHING if name.in_doubt else None)
        if probe is None or target != name.coming or key in self._answered:
            return
        await self._api.ask(pinned_names.whole(name.served_name, target.digest), probe)
        self._answered = {each for each in self._answered if each[0] == key[0]} | {key}
        crash_at("load.probed")

    async def _ensure(self, name: ServedName, target: Target, *, publish: bool) -> None:
        state = await self._control.state()
        revision = state.find(name.served_name, target.digest, target.loader)
        if revision is None or revision.closed:  # one that was to go is taken back
            self._desired.begin_load(target.digest, state.instance)
            lora_int_id = await self._control.load(name.served_name, target.digest, target.loader)
            crash_at("load.loaded")
            residency, verified = "", False
        else:
            lora_int_id, residency = revision.lora_int_id, revision.residency
            verified = revision.verified
        if not verified:
            await self._verify(name.served_name, lora_int_id)
        await self._ask(name, target, (state.instance, lora_int_id))
        if residency != name.residency:
            await self._control.keep(lora_int_id, name.residency)
        if publish:
            await self._publish(name, target, lora_int_id, state)
        self._desired.settle_load(target.digest, proved=True)

    async def _verify(self, served_name: str, lora_int_id: int) -> None:
        """Prove the loaded revision; one that fails leaves the engine, so that it is loaded anew.

        One that is served is proved again after the engine slept: if it fails, no answer is better
        than a wrong one.
        """
        try:
            await self._control.verify(lora_int_id)
        except EngineRejected:
            state = await self._control.state()
            if state.served.get(served_name) == lora_int_id:
                await self.hide(served_name)
            await self._control.unload(lora_int_id)
            raise
        crash_at("load.verified")

    async def _publish(
        self, name: ServedName, target: Target, lora_int_id: int, state: EngineState
    ) -> None:
        """Point the name at the revision and prove that it answers; else put the old one back."""
        if state.served.get(name.served_name) != lora_int_id:
            await self._control.publish(name.served_name, lora_int_id)
        elif target == name.current:
            return  # published and proved before
        crash_at("switch.published")
        try:
            await self._api.prove(name.served_name)
        except EngineRejected:
            await self._put_back(name, lora_int_id, state)
            raise
        crash_at("switch.probed")

    async def _put_back(self, name: ServedName, refused: int, state: EngineState) -> None:
        old = None
        if name.current is not None:
            old = state.find(name.served_name, name.current.digest, name.current.loader)
        if old is not None and old.lora_int_id != refused:
            await self._control.publish(name.served_name, old.lora_int_id)
        else:
            await self._control.unpublish(name.served_name)
