"""In the workers: adapters of ours go to `Residency`, all others on to vLLM's own methods.

Both managers are wrapped: `LRUCacheWorkerLoRAManager.add_adapter` does not call its parent's.
"""

from __future__ import annotations

import gc
import logging
from typing import Any

from lorafleet_vllm.patches.wrap import wrap
from lorafleet_vllm.settings import volume_from_environment

_log = logging.getLogger("vllm.lorafleet")
_GC_THRESHOLD = 10_000
"""New objects until Python looks for cycles, for its 700: the plan of a large adapter is thousands, and
each second look of that kind took 1 to 10 ms beside a step, where nothing is found."""


def patch_workers() -> None:
    """Patch the LoRA managers and the worker."""
    from vllm.lora.model_manager import LoRAModelManager, LRUCacheLoRAModelManager
    from vllm.lora.worker_manager import LRUCacheWorkerLoRAManager, WorkerLoRAManager
    from vllm.v1.worker.gpu_worker import Worker
    from vllm.v1.worker.worker_base import WorkerBase

    from lorafleet_vllm import worker_calls

    for manager in (WorkerLoRAManager, LRUCacheWorkerLoRAManager):
        wrap(manager, "create_lora_manager", _create_lora_manager)
        wrap(manager, "add_adapter", _add_adapter)
    wrap(WorkerLoRAManager, "_load_adapter", _load_adapter)
    wrap(WorkerLoRAManager, "remove_adapter", _remove_adapter)
    wrap(WorkerLoRAManager, "set_active_adapters", _set_active_adapters)
    wrap(LoRAModelManager, "set_adapter_mapping", _set_adapter_mapping)
    wrap(LoRAModelManager, "_add_adapter", _register)
    wrap(LoRAModelManager, "activate_adapter", _activate_adapter)
    wrap(LRUCacheLoRAModelManager, "activate_adapter", _count_slot_eviction)
    wrap(LRUCacheLoRAModelManager, "remove_oldest_adapter", _count_eviction)
    wrap(Worker, "wake_up", _wake_up)
    wrap(Worker, "execute_model", _execute_model)
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
            gc.set_threshold(max(_GC_THRESHOLD, gc.get_threshold()[0]))
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
