"""An engine that comes back with another base model gets none of the old one's adapters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fake_engine import BASE
from sidecar_rig import Rig
from waiting import until

if TYPE_CHECKING:
    from pathlib import Path


async def test_adapters_wait_for_the_base_model_that_they_were_loaded_for(volume: Path) -> None:
    async with Rig(volume) as rig:
        digest = rig.put(1)
        await rig.load(digest)
        counters = rig.sidecar.agent.counters
        await rig.engine.kill()
        rig.engine.behaviour.profile = {"base_model": "other/model"}
        await rig.engine.start()
        await until(lambda: counters.operations.get(("restore", "BaseModelMismatch")))
        assert rig.engine.revisions == {}

        # The operator may still ask for it, as for an adapter that allows another base.
        await rig.load(digest)
        assert await rig.answer("team-a/sql") == digest[7:19]

        # The old base model is the wrong one now, until it is asked for again there.
        await rig.engine.kill()
        rig.engine.behaviour.profile = {}
        await rig.engine.start()
        assert rig.engine.base == BASE
        await rig.load(digest)
        await rig.engine.kill()
        await rig.engine.start()
        await until(lambda: rig.engine.served)
