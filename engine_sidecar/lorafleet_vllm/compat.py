"""Whether this vLLM is one that the plugin knows: its version, and what it patches or calls.

A version alone proves little (builds differ), a signature alone little more: both are checked. The
answer is one line for the handshake; "ok" means that everything the plugin touches is as it was
in the versions that it was tested with.
"""

from __future__ import annotations

import importlib
import inspect
import re
from dataclasses import dataclass
from typing import Any

OK = "ok"
OLDEST = (0, 26)
BELOW = (0, 34)

_WORKER = "vllm.lora.worker_manager"
_MANAGER = "vllm.lora.model_manager"
_MODELS = "vllm.entrypoints.openai.models.serving"
_LINEAR = "vllm.model_executor.layers.linear"
_ENGINE = "vllm.v1.engine.async_llm"
_SERVING = "vllm.entrypoints.serve.engine.serving"
_POOLING = "vllm.entrypoints.pooling.base.serving"


@dataclass(frozen=True)
class Wanted:
    """A function of vLLM, and the names of its parameters after `self`, in order.

    More parameters may follow if they have defaults.
    """

    module: str
    name: str
    parameters: tuple[str, ...]


WORKER_SIDE = (
    Wanted(_WORKER, "WorkerLoRAManager.create_lora_manager", ("model", "vllm_config")),
    Wanted(_WORKER, "WorkerLoRAManager._load_adapter", ("lora_request",)),
    Wanted(_WORKER, "WorkerLoRAManager.add_adapter", ("adapter_request",)),
    Wanted(_WORKER, "WorkerLoRAManager.remove_adapter", ("adapter_id",)),
    Wanted(_WORKER, "WorkerLoRAManager.set_active_adapters", ("requests", "mapping")),
    Wanted(_WORKER, "LRUCacheWorkerLoRAManager.create_lora_manager", ("model", "vllm_config")),
    Wanted(_WORKER, "LRUCacheWorkerLoRAManager.add_adapter", ("lora_request",)),
    Wanted(_MANAGER, "LoRAModelManager._add_adapter", ("lora",)),
    Wanted(_MANAGER, "LoRAModelManager.activate_adapter", ("lora_id",)),
    Wanted(_MANAGER, "LoRAModelManager.set_adapter_mapping", ("mapping",)),
    Wanted(_MANAGER, "LoRAModelManager.remove_adapter", ("adapter_id",)),
    Wanted(_MANAGER, "LoRAModelManager._get_lora_layer_weights", ("lora_model", "module_name")),
    Wanted(_MANAGER, "LRUCacheLoRAModelManager.activate_adapter", ("lora_id",)),
    Wanted(_MANAGER, "LRUCacheLoRAModelManager.remove_oldest_adapter", ()),
    Wanted("vllm.lora.lora_model", "LoRAModel.__init__", ("lora_model_id", "rank", "loras")),
    Wanted(
        "vllm.lora.lora_model",
        "LoRAModel.from_lora_tensors",
        ("lora_model_id", "tensors", "peft_helper", "device", "dtype", "model_vocab_size"),
    ),
    Wanted(
        "vllm.lora.lora_weights",
        "PackedLoRALayerWeights.__init__",
        ("module_name", "rank", "lora_alphas", "lora_a", "lora_b", "scaling"),
    ),
    Wanted("vllm.utils.cache", "LRUCache.pin", ("key",)),
    Wanted("vllm.utils.cache", "LRUCache.touch", ("key",)),
    Wanted("vllm.lora.layers", "FusedMoEWithLoRA._slice_w13_a", ("w13_lora_a",)),
    Wanted("vllm.lora.layers", "FusedMoEWithLoRA._slice_w13_b", ("w13_lora_b",)),
    Wanted("vllm.lora.layers", "FusedMoEWithLoRA._slice_w2_a", ("w2_lora_a",)),
    Wanted("vllm.lora.layers", "FusedMoEWithLoRA._slice_w2_b", ("w2_lora_b",)),
    Wanted(
        "vllm.lora.layers",
        "MergedColumnParallelLinearWithLoRA.expand_packed_lora",
        ("lora_a", "lora_b"),
    ),
    Wanted("vllm.v1.worker.gpu_worker", "Worker.wake_up", ("tags",)),
    Wanted("vllm.v1.worker.gpu_worker", "Worker.execute_model", ("scheduler_output",)),
    # What the proof reads slots by.
    Wanted("vllm.model_executor.models.utils", "WeightsMapper._map_name", ("key",)),
    Wanted(_LINEAR, "QKVParallelLinear._get_shard_offset_mapping", ("loaded_shard_id",)),
    Wanted(_LINEAR, "QKVParallelLinear._get_shard_size_mapping", ("loaded_shard_id",)),
)

# What the gate needs; without it a step waits for the slots that it uses, as in stock vLLM.
CORE_SIDE = (
    Wanted("vllm.v1.engine.core", "EngineCore.add_request", ("request",)),
    Wanted("vllm.v1.core.sched.scheduler", "Scheduler.schedule", ()),
    Wanted("vllm.v1.core.sched.request_queue", "RequestQueue.prepend_request", ("request",)),
    Wanted("vllm.v1.core.sched.request_queue", "RequestQueue.remove_requests", ("requests",)),
)

# What makes requests wait for an adapter; without it they are told at once that there is none.
FIRST_REQUEST_SIDE = (
    Wanted(_MODELS, "OpenAIServingModels.resolve_lora", ("lora_name",)),
    Wanted(_MODELS, "create_error_response", ("message", "err_type", "status_code")),
    Wanted(_SERVING, "BaseServing._check_model", ("request",)),
    Wanted(_SERVING, "BaseServing._is_model_supported", ("model_name",)),
    Wanted(_POOLING, "PoolingBaseServing._check_model", ("request",)),
    Wanted(_POOLING, "PoolingBaseServing._is_model_supported", ("model_name",)),
)

API_SIDE = (
    Wanted(_MODELS, "OpenAIServingModels.__init__", ("engine_client", "base_model_paths")),
    Wanted(_MODELS, "OpenAIServingModels.model_name", ("lora_request",)),
    Wanted(_MODELS, "OpenAIServingModels.show_available_models", ()),
    Wanted(_ENGINE, "AsyncLLM.add_lora", ("lora_request",)),
    Wanted(_ENGINE, "AsyncLLM.remove_lora", ("lora_id",)),
    Wanted(_ENGINE, "AsyncLLM.abort", ("request_id", "internal")),
    Wanted(_ENGINE, "AsyncLLM.wake_up", ("tags",)),
    Wanted(_ENGINE, "AsyncLLM.collective_rpc", ("method", "timeout", "args", "kwargs")),
)

# What shows adapters by their served names in vLLM's own metrics; without it revisions are shown.
METRICS_SIDE = (
    Wanted("vllm.v1.engine.output_processor", "OutputProcessor.add_request", ("request", "prompt")),
)


def check(version: str, wanted: tuple[Wanted, ...]) -> str:
    """Return "ok", or in one line why the plugin must stay inactive in vLLM `version`."""
    found = re.match(r"(\d+)\.(\d+)", version)
    numbers = (int(found[1]), int(found[2])) if found else (0, 0)
    if not OLDEST <= numbers < BELOW:
        return f"vLLM {version} is not supported: the plugin knows 0.26 to 0.33"
    for entry in wanted:
        reason = _difference(entry)
        if reason:
            return f"vLLM {version}: {entry.name} {reason}"
    return OK


def _difference(wanted: Wanted) -> str:
    """Return what is not as wanted, or an empty string."""
    try:
        owner: Any = importlib.import_module(wanted.module)
        for part in wanted.name.split("."):
            owner = getattr(owner, part)
        signature = inspect.signature(owner)
    except (ImportError, AttributeError) as error:
        return f"does not exist ({error})"
    found = [p for name, p in signature.parameters.items() if name not in ("self", "cls")]
    names = tuple(p.name for p in found[: len(wanted.parameters)])
    if names != wanted.parameters:
        return f"takes {names}, the plugin calls it with {wanted.parameters}"
    for extra in found[len(wanted.parameters) :]:
        variable = extra.kind in (extra.VAR_POSITIONAL, extra.VAR_KEYWORD)
        if extra.default is extra.empty and not variable:
            return f"needs a parameter {extra.name} that the plugin does not know"
    return ""
