"""Bringing an offloaded adapter back into vLLM's host tier after LRU dropped it."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from lorafleet_vllm.direct import ReadyModel
from lorafleet_vllm.host_store import HostEntry
from lorafleet_vllm.tensor_tree import model_tensors

if TYPE_CHECKING:
    import torch


class OffloadedModel(ReadyModel):
    """An adapter of the `device` loader: packed, scaled, in page-locked host memory."""


def entry_of(model: Any, source: dict[str, torch.Tensor] | None = None) -> HostEntry:
    """Return what has to be kept of an offloaded `model` to rebuild it."""
    return HostEntry(model.rank, dict(model.loras), list(model_tensors(model)), source or {})


def rebuild(lora_int_id: int, entry: HostEntry) -> OffloadedModel:
    """Return the adapter again, its tensors shared with `entry`: no copy, no pinning.

    The weights were scaled when they were first packed; as a ReadyModel they are not again.
    """
    loras = {name: copy.copy(weights) for name, weights in entry.loras.items()}
    return OffloadedModel(lora_int_id, entry.rank, loras)
