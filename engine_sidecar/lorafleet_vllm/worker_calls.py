"""What the API server process asks of the workers, through vLLM's collective_rpc.

Each function becomes a method of WorkerBase, is called in every worker between two steps, and
answers with JSON, which any vLLM serialises.
"""

from __future__ import annotations

import json
from typing import Any

from lorafleet.errors import EngineRejected
from vllm.lora.request import LoRARequest

from lorafleet_vllm.footprint import footprint
from lorafleet_vllm.proof import evidence
from lorafleet_vllm.residency import Residency
from lorafleet_vllm.worker_profile import read_profile


def lorafleet_stats(worker: Any) -> str:
    """Return this worker's residency and memory counters.

    A worker in which the plugin is not live says why under `inactive`.
    """
    residency = residency_of(worker)
    if residency is None:
        return json.dumps({"rank": worker.rank, "inactive": _reason(worker)})
    report = {**residency.report(), **footprint(worker.model_runner)}
    return json.dumps({"rank": worker.rank, **report})


def lorafleet_profile(worker: Any) -> str:
    """Return the EngineProfile of this worker's engine, or `inactive` with the reason."""
    residency = residency_of(worker)
    if residency is None:
        return json.dumps({"inactive": _reason(worker)})
    return read_profile(worker.vllm_config, residency).to_json()


def lorafleet_begin(worker: Any, lora_int_id: int, name: str, path: str) -> str:
    """Start to bring an adapter in beside the steps; goes on and answers as `lorafleet_progress` does."""
    residency = residency_of(worker)
    if residency is not None:
        residency.background.begin(LoRARequest(name, lora_int_id, path))
    return lorafleet_progress(worker, lora_int_id)


def lorafleet_progress(worker: Any, lora_int_id: int) -> str:
    """Go on for a slice. Returns `done`, `error` ("" unless it was refused) and `busy`."""
    residency = residency_of(worker)
    if residency is None:
        line = _reason(worker)
        return json.dumps({"inactive": line, "done": True, "error": line, "busy": False})
    return json.dumps(residency.background.progress(lora_int_id))


def lorafleet_fetch(worker: Any, wanted: list[tuple[int, str, str]], needed: list[int]) -> str:
    """Go on for a slice with bringing `wanted` (id, name, path) into slots.

    Returns the adapters whose slots are complete (`ready`) and those that failed (`failed`).
    """
    residency = residency_of(worker)
    if residency is None:
        return json.dumps({"ready": [], "failed": [lora_int_id for lora_int_id, _, _ in wanted]})
    requests = [LoRARequest(name, lora_int_id, path) for lora_int_id, name, path in wanted]
    return json.dumps(residency.background.fetch(requests, needed))


def lorafleet_keep(worker: Any, lora_int_id: int, how: str) -> str:
    """Keep a resident adapter as `how` (a residency of keeping.py) says."""
    residency = residency_of(worker)
    if residency is not None:
        residency.keep(lora_int_id, how)
    return "{}"


def lorafleet_evidence(worker: Any, lora_int_id: int, start: int, stop: int) -> str:
    """Return the fingerprints of what layers [start, stop) hold of an adapter, or `error`."""
    residency = residency_of(worker)
    if residency is None:
        return json.dumps({"inactive": _reason(worker)})
    try:
        return json.dumps(evidence(residency, lora_int_id, start, stop))
    except EngineRejected as error:
        return json.dumps({"error": str(error)})


def residency_of(worker: Any) -> Residency | None:
    """Return the worker's Residency, or None where LoRA is off."""
    manager = getattr(worker.model_runner, "lora_manager", None)
    found = getattr(getattr(manager, "_adapter_manager", None), "lorafleet", None)
    return found if isinstance(found, Residency) else None


def _reason(worker: Any) -> str:
    manager = getattr(getattr(worker.model_runner, "lora_manager", None), "_adapter_manager", None)
    if manager is None:
        return "LoRA is off"
    return str(getattr(manager, "lorafleet_inactive", "the plugin was not there at its start"))
