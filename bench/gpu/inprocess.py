"""An engine of a benchmark's shape in this process, with CUDA graphs where there is a GPU."""

from __future__ import annotations

import gc
import json
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import accelerator
from paper_probe import Probe
from plugin_requests import ours

if TYPE_CHECKING:
    from pathlib import Path

    from shapes import Shape
    from staging import Staging

_PAUSE_SECONDS = 0.0005  # as the control socket's
_GPU_OPTIONS = {
    "gpu_memory_utilization": 0.75,
    # Eight requests decode, others come and go: graphs of other sizes only take time to make.
    "compilation_config": {"cudagraph_capture_sizes": [1, 8, 16]},
}
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")


@dataclass(frozen=True)
class Start:
    """What the engine's start took: all of it, and of that the registering of the arena."""

    seconds: float
    register_seconds: float


def engine_options(shape: Shape, model: Path) -> dict[str, Any]:
    """Return vLLM's arguments for a model of random weights in `model`, which is made here."""
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(shape.config()))
    return {
        "model": str(model),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "enable_lora": True,
        "max_loras": 2,
        "max_cpu_loras": 2,
        "max_lora_rank": shape.rank,
        "max_model_len": 8192 if accelerator.CUDA else 1024,
        "max_num_seqs": 16,
        "dtype": "bfloat16",
        "enforce_eager": not accelerator.CUDA,
        "enable_prefix_caching": False,
        **(_GPU_OPTIONS if accelerator.CUDA else {}),
    }


def start(shape: Shape, staging: Staging, folder: Path, **options: Any) -> tuple[Probe, Start]:
    """Start the engine on `staging`'s volume."""
    os.environ["LORAFLEET_VOLUME"] = str(staging.volume)
    registering: list[float] = []
    _time_registration(registering)
    import lorafleet_vllm

    lorafleet_vllm.register()
    from vllm import LLM

    arguments = engine_options(shape, folder / "model")
    arguments |= {"distributed_executor_backend": "uni", **options}
    begin = time.perf_counter()
    llm = LLM(**arguments)
    seconds = time.perf_counter() - begin
    gc.collect()
    gc.freeze()  # as vLLM's own engine process does: a collection is no part of a step
    return Probe(llm, staging, folder), Start(seconds, sum(registering))


def _time_registration(seconds: list[float]) -> None:
    from lorafleet_vllm import cuda_host

    original = cuda_host.register

    def register(*arguments: Any, **options: Any) -> bool:
        begin = time.perf_counter()
        try:
            return original(*arguments, **options)
        finally:
            seconds.append(time.perf_counter() - begin)

    cuda_host.register = register


def revision(staging: Staging, lora_int_id: int, name: str, loader: str = "direct") -> Any:
    """Return a LoRARequest for a staged adapter."""
    return ours(staging.volume, lora_int_id, staging.staged[name].digest, loader)


class Load:
    """One load as the control socket does it: begun, then carried on by short calls."""

    def __init__(self, probe: Probe, request: Any) -> None:
        self._ask = probe.llm.collective_rpc
        self._id = request.lora_int_id
        arguments = (request.lora_int_id, request.lora_name, request.lora_path)
        self.done = self._look(self._ask("lorafleet_begin", args=arguments))

    def go_on(self) -> bool:
        """Give it a slice of time; returns whether its slot is complete."""
        self.done = self.done or self._look(self._ask("lorafleet_progress", args=(self._id,)))
        return self.done

    def _look(self, texts: list[str]) -> bool:
        answers = [json.loads(text) for text in texts]
        assert not any(answer["error"] for answer in answers), answers
        self.busy = any(answer["busy"] for answer in answers)
        return all(answer["done"] for answer in answers)


def load_seconds(probe: Probe, request: Any) -> float:
    """Return the seconds until the adapter of `request`, of ours or stock, is complete in a slot."""
    accelerator.synchronize()
    begin = time.perf_counter()
    if probe.residency.is_ours(request):
        load = Load(probe, request)
        while not load.go_on():
            time.sleep(0.0 if load.busy else _PAUSE_SECONDS)
    else:
        probe.llm.llm_engine.add_lora(request)
        accelerator.synchronize()
    seconds = time.perf_counter() - begin
    assert request.lora_int_id in probe.manager.lora_index_to_id, "no free slot"
    return seconds


def evict(probe: Probe, lora_int_id: int) -> None:
    """Drop an adapter from slot and host tier as LRU does; its id stays known."""
    probe.manager.remove_adapter(lora_int_id)


def clear(probe: Probe) -> None:
    """Unload everything."""
    for lora_int_id in list(probe.residency.known):
        probe.lora.remove_adapter(lora_int_id)
    probe.lora.remove_all_adapters()


def differing_slots(probe: Probe, left: int, right: int) -> list[str]:
    """Return the buffers whose bits differ between the slots of two adapters."""
    import torch
    from slot_probe import stacked

    slots = probe.manager.lora_index_to_id
    one, other = slots.index(left), slots.index(right)
    return [
        f"{wrapper}/{name}"
        for wrapper, layer in probe.manager.modules.items()
        for name, tensor in stacked(layer).items()
        if not torch.equal(_bits(tensor[one]), _bits(tensor[other]))
    ]


def _bits(tensor: Any) -> Any:
    import torch

    return tensor.view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor


def soil(probe: Probe) -> None:
    """Fill every free slot with what no adapter holds."""
    import slot_probe

    for index, owner in enumerate(probe.manager.lora_index_to_id):
        if owner is None:
            slot_probe.soil(probe.manager, index)
