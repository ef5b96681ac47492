"""In the engine core: the scheduler holds back requests of adapters that have no slot yet."""

from __future__ import annotations

import logging
from typing import Any

import vllm

from lorafleet_vllm import compat
from lorafleet_vllm.patches.wrap import wrap
from lorafleet_vllm.settings import volume_from_environment

_log = logging.getLogger("vllm.lorafleet")


def patch_core() -> None:
    """Patch the scheduler, if this vLLM's is one that the gate knows."""
    reason = compat.check(vllm.__version__, compat.CORE_SIDE)
    if reason != compat.OK:
        _log.warning("lorafleet: steps wait for slots that are being filled: %s", reason)
        return
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine.core import EngineCore

    # Its own __init__ may be running: it is what loads the plugins in a fresh process.
    wrap(EngineCore, "add_request", _add_request)
    wrap(Scheduler, "schedule", _schedule)


def _add_request(original: Any) -> Any:
    def add_request(self: Any, *args: Any, **kwargs: Any) -> None:
        if not hasattr(self.scheduler, "lorafleet_gate"):
            from lorafleet_vllm.gate import make_gate

            self.scheduler.lorafleet_gate = make_gate(self, volume_from_environment())
        original(self, *args, **kwargs)

    return add_request


def _schedule(original: Any) -> Any:
    def schedule(self: Any, *args: Any, **kwargs: Any) -> Any:
        gate = getattr(self, "lorafleet_gate", None)
        if gate is None:
            return original(self, *args, **kwargs)
        with gate.holding(self):
            return original(self, *args, **kwargs)

    return schedule
