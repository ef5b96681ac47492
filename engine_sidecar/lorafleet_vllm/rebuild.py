"""Bringing an offloaded adapter back into vLLM's host tier after LRU dropped it."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from lorafleet_vllm.direct import ReadyModel
from lorafleet_vllm.host_store import HostEntry
from lorafleet_vllm.slot_factors import Pair
from lorafleet_vllm.slot_plan import plan_slot
from lorafleet_vllm.tensor_tree import model_tensors

if TYPE_CHECKING:
    import torch

    from lorafleet_vllm.slot_factors import Parts
    from lorafleet_vllm.slot_plan import Limits


class OffloadedModel(ReadyModel):
    """An adapter of the `device` loader: packed, scaled, in page-locked host memory."""


def entry_of(model: Any, source: dict[str, torch.Tensor] | None = None) -> HostEntry:
    """Return what has to be kept of an offloaded `model` to rebuild it."""
    return HostEntry(model.rank, dict(model.loras), list(model_tensors(model)), source or {})


def rebuild(
    lora_int_id: int, entry: HostEntry, modules: dict[str, Any], limits: Limits
) -> OffloadedModel:
    """Return the adapter again, its tensors shared with `entry`: no copy, no pinning.

    The weights were scaled when they were first packed; as a ReadyModel they are not again. The
    slot is filled by the same loop as that of `direct`.
    """
    loras = {name: copy.copy(weights) for name, weights in entry.loras.items()}
    model = OffloadedModel(lora_int_id, entry.rank, loras)
    model.plan = plan_slot(modules, lambda name: _parts(name, loras.get(name)), limits.group_bytes)
    return model


def _parts(name: str, weights: Any) -> Parts:
    """Return packed weights as pairs of scaling one; vLLM leaves gaps where a part is missing."""
    if weights is None:
        return []
    if not isinstance(weights.lora_a, list | tuple):
        return [Pair(name, weights.lora_a, weights.lora_b, (1.0,))]
    return [
        None if a is None or b is None else Pair(name, a, b, (1.0,))
        for a, b in zip(weights.lora_a, weights.lora_b, strict=True)
    ]
