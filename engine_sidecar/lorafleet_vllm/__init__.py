"""The plugin inside vLLM: in-memory loads from the arena, served names, memory counters.

Rules of this package: only torch, vLLM, what vLLM itself ships and the pure contract package
`lorafleet` are imported; every attribute that is assigned on a vLLM class is assigned in
`patches/`, after `compat.py` has checked it; adapters whose path is not on our volume take
vLLM's own path untouched; nothing here may break serving.
"""

from __future__ import annotations

import logging
import sys

__version__ = "0.1.0"

_log = logging.getLogger("vllm.lorafleet")


def register() -> None:
    """Entry point of `vllm.general_plugins`: patch vLLM once, if LORAFLEET_VOLUME is set.

    vLLM calls it in every process it starts, and may call it again. It never raises: whatever
    goes wrong leaves vLLM as it was, is logged once and is told by the handshake.
    """
    from lorafleet_vllm.settings import volume_from_environment

    if volume_from_environment() is None or _only_inspects_a_model():
        return
    try:
        from lorafleet_vllm import patches

        patches.apply()
    except Exception:
        _log.exception("lorafleet: the plugin stays inactive in this process")


def _only_inspects_a_model() -> bool:
    """Whether this process is the short-lived one in which vLLM looks at a model's class."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return getattr(spec, "name", "") == "vllm.model_executor.models.registry"
