"""Ends the engine's vLLM, so that its container is started again."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from lorafleet.errors import EngineRejected

from lorafleet_sidecar.observed import Health

if TYPE_CHECKING:
    from lorafleet_sidecar.agent import Agent

log = logging.getLogger(__name__)


async def end_engine(agent: Agent, instance: str, *, force: bool) -> None:
    """End vLLM if it is still `instance`. No load is cut off: it waits for its turn.

    Raises EngineRejected while requests run, unless forced, and without the plugin.
    """
    async with agent.turn:
        observed = await agent.look()
        if observed.instance != instance:
            return
        if observed.health is not Health.READY:
            raise EngineRejected("only the plugin can end vLLM, and it is not live")
        log.info("ending engine instance %s (force: %s)", instance, force)
        await agent.engine.control.shutdown(instance, force=force)
