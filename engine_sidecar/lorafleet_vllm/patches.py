"""Every attribute that the plugin assigns on vLLM's classes. Nothing else patches.

Worker side: the LoRA managers hand adapters of ours to `Residency`, all others go on to vLLM's own
method. Engine core: the scheduler holds back requests of adapters that have no slot yet. API side:
the table of served names, the control socket, and what vLLM's metrics call an adapter. Both managers are wrapped:
`LRUCacheWorkerLoRAManager.add_adapter` does not call its parent's.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

import vllm

from lorafleet_vllm import compat
from lorafleet_vllm.settings import volume_from_environment

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger("vllm.lorafleet")
_MARK = "__lorafleet__"  # set on every function that this file puts in place


def apply() -> str:
    """Patch vLLM in this process, once. Returns what the handshake says: "ok" or the reason."""
    _enable_amx()
    reason = compat.check(vllm.__version__, compat.WORKER_SIDE + compat.API_SIDE)
    if reason != compat.OK:
        _log.warning("lorafleet: the plugin is inactive: %s", reason)
    else:
        _patch_workers()
        _patch_core()
        _patch_metrics()
    _patch_api_server(reason)
    return reason


def _enable_amx() -> None:
    """Ask the kernel for AMX: without it bfloat16 attention on some CPUs dies of SIGILL."""
    import torch

    init_amx = getattr(getattr(torch._C, "_cpu", None), "_init_amx", None)
    if init_amx is not None:
        init_amx()


def _wrap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replace `owner.name` by `make(original)`, unless done before."""
    original = getattr(owner, name)
    if hasattr(original, _MARK):
        return
    replacement = functools.wraps(original)(make(original))
    setattr(replacement, _MARK, True)
    setattr(owner, name, replacement)


def _patch_workers() -> None:
    from vllm.lora.model_manager import LoRAModelManager, LRUCacheLoRAModelManager
    from vllm.lora.worker_manager import LRUCacheWorkerLoRAManager, WorkerLoRAManager
    from vllm.v1.worker.gpu_worker import Worker
    from vllm.v1.worker.worker_base import WorkerBase

    from lorafleet_vllm import worker_calls

    for manager in (WorkerLoRAManager, LRUCacheWorkerLoRAManager):
        _wrap(manager, "create_lora_manager", _create_lora_manager)
        _wrap(manager, "add_adapter", _add_adapter)
    _wrap(WorkerLoRAManager, "_load_adapter", _load_adapter)
    _wrap(WorkerLoRAManager, "remove_adapter", _remove_adapter)
    _wrap(WorkerLoRAManager, "set_active_adapters", _set_active_adapters)
    _wrap(LoRAModelManager, "set_adapter_mapping", _set_adapter_mapping)
    _wrap(LoRAModelManager, "_add_adapter", _register)
    _wrap(LoRAModelManager, "activate_adapter", _activate_adapter)
    _wrap(LRUCacheLoRAModelManager, "activate_adapter", _count_slot_eviction)
    _wrap(LRUCacheLoRAModelManager, "remove_oldest_adapter", _count_eviction)
    _wrap(Worker, "wake_up", _wake_up)
    _wrap(Worker, "execute_model", _execute_model)
    for call in (
        worker_calls.lorafleet_begin,
        worker_calls.lorafleet_progress,
        worker_calls.lorafleet_fetch,
        worker_calls.lorafleet_stats,
        worker_calls.lorafleet_profile,
        worker_calls.lorafleet_keep,
        worker_calls.lorafleet_evidence,
    ):
        setattr(WorkerBase, call.__name__, call)


def _create_lora_manager(original: Any) -> Any:
    def create_lora_manager(self: Any, model: Any, vllm_config: Any) -> Any:
        from lorafleet_vllm.residency import Residency

        result = original(self, model, vllm_config)
        volume = volume_from_environment()
        if volume is None:
            return result
        try:
            self._adapter_manager.lorafleet = Residency(volume, self._adapter_manager)
        except Exception as error:
            _log.exception("lorafleet: the plugin is inactive in this worker")
            reason = f"{type(error).__name__}: {error}"
            self._adapter_manager.lorafleet_inactive = reason
        return result

    return create_lora_manager


def _residency(owner: Any) -> Any:
    """Return the Residency of a worker's LoRA manager or of its model manager, or None."""
    return getattr(getattr(owner, "_adapter_manager", owner), "lorafleet", None)


def _load_adapter(original: Any) -> Any:
    def load_adapter(self: Any, lora_request: Any) -> Any:
        residency = _residency(self)
        if residency is not None and residency.is_ours(lora_request):
            return residency.load(lora_request)
        return original(self, lora_request)

    return load_adapter


def _add_adapter(original: Any) -> Any:
    def add_adapter(self: Any, request: Any) -> bool:
        residency = _residency(self)
        if residency is not None and residency.is_ours(request):
            return bool(residency.add(request))
        if residency is not None:
            residency.check_foreign(request)
        return bool(original(self, request))

    return add_adapter


def _remove_adapter(original: Any) -> Any:
    def remove_adapter(self: Any, adapter_id: int) -> bool:
        residency = _residency(self)
        if residency is None or adapter_id not in residency.known:
            return bool(original(self, adapter_id))
        if residency.in_step:  # the manager without LRU drops what the step does not use
            residency.stats.evictions += 1
            return bool(original(self, adapter_id))
        return bool(residency.remove(adapter_id))

    return remove_adapter


def _set_active_adapters(original: Any) -> Any:
    def set_active_adapters(self: Any, requests: Any, mapping: Any) -> None:
        residency = _residency(self)
        if residency is None:
            original(self, requests, mapping)
            return
        with residency.step(requests):
            original(self, requests, mapping)

    return set_active_adapters


def _set_adapter_mapping(original: Any) -> Any:
    def set_adapter_mapping(self: Any, mapping: Any) -> None:
        from lorafleet_vllm.mapping import same_for

        if _residency(self) is not None and self._last_mapping == mapping:
            layout = tuple(self.lora_index_to_id)
            if same_for(mapping, self._last_slot_layout, layout):
                self._last_slot_layout = layout
        original(self, mapping)

    return set_adapter_mapping


def _register(original: Any) -> Any:
    def add_adapter(self: Any, lora: Any) -> None:
        from lorafleet_vllm.direct import ReadyModel

        if isinstance(lora, ReadyModel):  # packed already: no merging, no scaling, no pinning
            self._registered_adapters[lora.id] = lora
        else:
            original(self, lora)

    return add_adapter


def _activate_adapter(original: Any) -> Any:
    def activate_adapter(self: Any, lora_id: int) -> bool:
        residency = _residency(self)
        if residency is None:
            return bool(original(self, lora_id))
        result = bool(residency.activate(lora_id, original))
        residency.keep_slot(lora_id)
        return result

    return activate_adapter


def _count_slot_eviction(original: Any) -> Any:
    def activate_adapter(self: Any, lora_id: int) -> bool:
        residency = _residency(self)
        if residency is not None and lora_id not in self._active_adapters:
            residency.make_way()
        before = set(self._active_adapters)
        result = original(self, lora_id)
        if residency is not None:
            gone = before - set(self._active_adapters)
            residency.stats.slot_evictions += len(gone & residency.known.keys())
        return bool(result)

    return activate_adapter


def _count_eviction(original: Any) -> Any:
    def remove_oldest_adapter(self: Any) -> bool:
        residency = _residency(self)
        if residency is not None:
            residency.make_way()
        before = set(self._registered_adapters)
        result = original(self)
        if residency is not None:
            gone = before - set(self._registered_adapters)
            residency.stats.evictions += len(gone & residency.known.keys())
        return bool(result)

    return remove_oldest_adapter


def _wake_up(original: Any) -> Any:
    from lorafleet_vllm import worker_calls

    def wake_up(self: Any, tags: Any = None) -> None:
        original(self, tags)
        residency = worker_calls.residency_of(self)
        if residency is not None and (tags is None or "weights" in tags):
            residency.refill()

    return wake_up


def _execute_model(original: Any) -> Any:
    from lorafleet_vllm import worker_calls

    def execute_model(self: Any, scheduler_output: Any) -> Any:
        result = original(self, scheduler_output)
        residency = worker_calls.residency_of(self)
        if residency is not None:
            residency.background.behind_step()
        return result

    return execute_model


def _patch_core() -> None:
    reason = compat.check(vllm.__version__, compat.CORE_SIDE)
    if reason != compat.OK:
        _log.warning("lorafleet: steps wait for slots that are being filled: %s", reason)
        return
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine.core import EngineCore

    # Its own __init__ may be running: it is what loads the plugins in a fresh process.
    _wrap(EngineCore, "add_request", _add_request)
    _wrap(Scheduler, "schedule", _schedule)


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


def _patch_metrics() -> None:
    reason = compat.check(vllm.__version__, compat.METRICS_SIDE)
    if reason != compat.OK:
        _log.warning("lorafleet: vLLM's metrics show revisions, not served names: %s", reason)
        return
    from vllm.v1.engine.output_processor import OutputProcessor

    _wrap(OutputProcessor, "add_request", _count_under_served_name)


def _count_under_served_name(original: Any) -> Any:
    """Let a request count under the name that it asked for: routers look for that name."""
    volume = volume_from_environment()

    def add_request(self: Any, request: Any, *args: Any, **kwargs: Any) -> None:
        from lorafleet_vllm.served_names import shown_name

        original(self, request, *args, **kwargs)
        state = self.request_states.get(request.request_id)
        if volume is not None and state is not None and request.lora_request is not None:
            state.lorafleet_revision = request.lora_request.lora_name  # for Control.in_flight
            state.lora_name = shown_name(volume, request.lora_request)

    return add_request


def _patch_api_server(reason: str) -> None:
    from vllm.entrypoints.openai.models.serving import OpenAIServingModels

    def init(original: Any) -> Any:
        def start_with_control(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            _start_control(self, reason)

        return start_with_control

    _wrap(OpenAIServingModels, "__init__", init)
    if reason == compat.OK:
        from fastapi import FastAPI
        from vllm.v1.engine.async_llm import AsyncLLM

        _wrap(FastAPI, "build_middleware_stack", _count_requests)
        _wrap(AsyncLLM, "wake_up", _woken)
        _wrap(OpenAIServingModels, "model_name", _model_name)
        _wrap(OpenAIServingModels, "show_available_models", _show_available_models)
        _patch_first_requests()


def _patch_first_requests() -> None:
    reason = compat.check(vllm.__version__, compat.FIRST_REQUEST_SIDE)
    if reason != compat.OK:
        _log.warning("lorafleet: requests do not wait for adapters that are not here: %s", reason)
        return
    from vllm.entrypoints.openai.models.serving import OpenAIServingModels
    from vllm.entrypoints.pooling.base.serving import PoolingBaseServing
    from vllm.entrypoints.serve.engine.serving import BaseServing

    from lorafleet_vllm import asking

    _wrap(OpenAIServingModels, "resolve_lora", asking.resolve_lora)
    for serving in (BaseServing, PoolingBaseServing):
        _wrap(serving, "_check_model", asking.check_model)


def _count_requests(original: Any) -> Any:
    def build_middleware_stack(self: Any) -> Any:
        from lorafleet_vllm.outcomes import counting

        return counting(original(self))

    return build_middleware_stack


def _start_control(models: Any, reason: str) -> None:
    try:
        from lorafleet_vllm.front import start

        start(models, reason)
    except Exception:
        _log.exception("lorafleet: the control socket could not be started")


def _woken(original: Any) -> Any:
    async def wake_up(self: Any, *args: Any, **kwargs: Any) -> Any:
        from lorafleet_vllm.front import woken

        try:
            return await original(self, *args, **kwargs)
        finally:
            woken()

    return wake_up


def _model_name(original: Any) -> Any:
    def model_name(self: Any, lora_request: Any = None) -> str:
        name = str(original(self, lora_request))
        table = self.lora_requests
        return (
            table.shown_name(lora_request)
            if hasattr(table, "shown_name") and lora_request
            else name
        )

    return model_name


def _show_available_models(original: Any) -> Any:
    async def show_available_models(self: Any) -> Any:
        models = await original(self)
        if hasattr(self.lora_requests, "rewrite_cards"):
            models.data = self.lora_requests.rewrite_cards(models.data)
        return models

    return show_available_models
