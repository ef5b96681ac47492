"""Every attribute that the plugin assigns on vLLM's classes. Nothing else patches.

One module for each process that has something to patch; `compat.py` has checked it before.
"""

from __future__ import annotations

import logging

import vllm

from lorafleet_vllm import compat
from lorafleet_vllm.patches.api_server import patch_api_server, patch_metrics
from lorafleet_vllm.patches.core import patch_core
from lorafleet_vllm.patches.workers import patch_workers

_log = logging.getLogger("vllm.lorafleet")


def apply() -> str:
    """Patch vLLM in this process, once. Returns what the handshake says: "ok" or the reason."""
    _enable_amx()
    reason = compat.check(vllm.__version__, compat.WORKER_SIDE + compat.API_SIDE)
    if reason != compat.OK:
        _log.warning("lorafleet: the plugin is inactive: %s", reason)
    else:
        patch_workers()
        patch_core()
        patch_metrics()
    patch_api_server(reason)
    return reason


def _enable_amx() -> None:
    """Ask the kernel for AMX: without it bfloat16 attention on some CPUs dies of SIGILL."""
    import torch

    init_amx = getattr(getattr(torch._C, "_cpu", None), "_init_amx", None)
    if init_amx is not None:
        init_amx()
