"""The loop that keeps the engine as desired without anybody asking.

It looks at the engine about once a second and after each change, brings back what a restart of
vLLM lost, finishes what a kill of the sidecar left half done, and unloads what nobody wants.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from lorafleet.errors import LorafleetError

from lorafleet_sidecar.desired import ServedName, Target
from lorafleet_sidecar.observed import Health

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lorafleet_sidecar.agent import Agent
    from lorafleet_sidecar.observed import EngineState, ObservedEngine

log = logging.getLogger(__name__)

_BACKOFF_SECONDS = (2.0, 300.0)  # first and longest pause after a failed restore of one name


class Restorer:
    """Compares the engine with the desired table and closes the difference."""

    def __init__(self, agent: Agent, refresh_seconds: float) -> None:
        self._agent = agent
        self._refresh_seconds = refresh_seconds
        self._not_before: dict[str, tuple[float, float]] = {}  # name -> (time, pause)

    async def run(self) -> None:
        """Look and repair for ever; ends only by cancellation.

        Two loops, so that watchers go on seeing the engine while a repair waits for its turn.
        """
        async with asyncio.TaskGroup() as loops:
            loops.create_task(self._forever(self._look), name="look")
            loops.create_task(self._forever(self._repair), name="repair")

    async def once(self) -> None:
        """One look, and whatever it shows to be missing."""
        await self._look()
        await self._repair()

    async def _forever(self, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await step()
            except LorafleetError as error:
                log.warning("restore: %s", error)
            except Exception:
                # These loops are what heals everything else: they must outlive their own faults.
                log.exception("restore failed unexpectedly")
            await asyncio.sleep(self._refresh_seconds)

    async def _look(self) -> None:
        await self._agent.look()

    async def _repair(self) -> None:
        agent = self._agent
        observed = agent.observed
        if not observed.usable or observed.state is None:
            return
        if not self._differs(observed):
            return
        async with agent.turn:
            observed = await agent.look()
            if not observed.usable or observed.state is None:
                return
            await self._adopt(observed.state)
            for served_name in agent.desired.in_restore_order():
                await self._restore(served_name)
            await agent.steps(agent.observed).sweep()
            await agent.look()

    def _differs(self, observed: ObservedEngine) -> bool:
        """Whether a look without the turn shows anything to do."""
        desired = self._agent.desired
        state = observed.state
        assert state is not None
        steps = self._agent.steps(observed)
        if any(name.removing for name in desired.names.values()):
            return True
        if not all(steps.satisfied(name, state) for name in desired.names.values()):
            return True
        if observed.health is Health.STOCK:
            return True  # plain files age
        wanted = {(n.served_name, t) for n in desired.names.values() for t in n.targets()}
        return any(
            each.digest and (each.served_name, Target(each.digest, each.loader)) not in wanted
            for each in state.revisions.values()
        )

    async def _adopt(self, state: EngineState) -> None:
        """Take over served revisions of ours that the table does not know (it was lost)."""
        agent = self._agent
        for served_name, lora_int_id in state.served.items():
            revision = state.revisions.get(lora_int_id)
            if revision is None or not revision.digest or served_name in agent.desired.names:
                continue
            if agent.store.find(revision.digest) is None:
                # The arena no longer vouches for these bytes: rather no answer than a wrong one.
                log.warning("hid %s: its revision is not in the arena any more", served_name)
                await agent.steps(agent.observed).hide(served_name)
                continue
            log.info("adopted %s from the engine", served_name)
            loader = revision.loader if revision.loader != "stock" else "direct"
            agent.desired.put(
                ServedName(
                    served_name, "", Target(revision.digest, loader), residency=revision.residency
                )
            )

    async def _restore(self, served_name: str) -> None:
        agent = self._agent
        name = agent.desired.names.get(served_name)
        state = agent.observed.state
        if name is None or state is None:
            return
        if not name.removing and agent.steps(agent.observed).satisfied(name, state):
            self._not_before.pop(served_name, None)
            return
        due, pause = self._not_before.get(served_name, (0.0, _BACKOFF_SECONDS[0]))
        started = time.monotonic()
        if started < due:
            return
        outcome = "ok"
        try:
            if name.removing:
                await agent.finish_removal(served_name)
            else:
                log.info("restoring %s", served_name)
                await agent.bring_up(served_name)
        except LorafleetError as error:
            outcome = error.reason
            log.warning("%s was not restored: %s", served_name, error)
            now = time.monotonic()
            self._not_before[served_name] = (now + pause, min(pause * 2, _BACKOFF_SECONDS[1]))
        agent.counters.finished("restore", outcome, time.monotonic() - started)
        await agent.look()
