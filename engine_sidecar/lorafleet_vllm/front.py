"""The API server process: starts the control socket beside vLLM's own server, once."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from lorafleet_vllm import control_http, control_server
from lorafleet_vllm.compat import OK
from lorafleet_vllm.control import Control
from lorafleet_vllm.first_requests import DEADLINE_SECONDS, deadline_seconds
from lorafleet_vllm.served_names import ServedNames
from lorafleet_vllm.settings import volume_from_environment

if TYPE_CHECKING:
    from concurrent.futures import Future

_log = logging.getLogger("vllm.lorafleet")
_started: list[asyncio.Task[None] | Future[None]] = []  # keeps the task; one per process
_controls: list[Control] = []


def start(models: Any, reason: str) -> None:
    """Serve the control socket for `models` (an OpenAIServingModels) in the running event loop.

    Does nothing in a process without a loop (offline use), in API servers but the first, or when
    it is served already.
    """
    volume = volume_from_environment()
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return
    parallel = models.engine_client.vllm_config.parallel_config
    if volume is None or _started or getattr(parallel, "_api_process_rank", 0) > 0:
        return
    if reason == OK:
        models.lora_requests = ServedNames(volume, models.lora_requests)
    control = Control(volume, models, reason, _deadline_seconds())
    if reason == OK:
        models.lorafleet_first_requests = control.first_requests
    _controls.append(control)
    app = control_http.application(control)
    _started.append(loop.create_task(control_server.serve(app, volume.socket)))
    _log.info("lorafleet: control socket at %s (compat: %s)", volume.socket, reason)


def _deadline_seconds() -> float:
    try:
        return deadline_seconds()
    except ValueError as error:
        _log.error("lorafleet: %s; taking %g", error, DEADLINE_SECONDS)
        return DEADLINE_SECONDS


def woken() -> None:
    """Tell the control that the engine slept: what its slots hold is to be proved again."""
    for control in _controls:
        control.doubt()
