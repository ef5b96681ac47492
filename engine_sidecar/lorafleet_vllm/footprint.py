"""What the base model and its KV cache take of a worker's memory, beside the LoRA slots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import torch


_WEIGHTS: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # they stay what they are


def footprint(model_runner: Any) -> dict[str, int]:
    """Return `weights_bytes` and `kv_cache_bytes` of vLLM's model runner, 0 for what is not there yet.

    Weights are the parameters and buffers of the model; the LoRA slots are neither. Tensors that
    share memory, as tied embeddings do, count once.
    """
    model = model_runner.get_model() if hasattr(model_runner, "get_model") else model_runner.model
    if model not in _WEIGHTS:
        _WEIGHTS[model] = storage_bytes([*model.parameters(), *model.buffers()])
    return {
        "weights_bytes": _WEIGHTS[model],
        "kv_cache_bytes": storage_bytes(_tensors(getattr(model_runner, "kv_caches", ()))),
    }


def storage_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of the memory that the tensors lie in, each piece of it once."""
    storages = (tensor.untyped_storage() for tensor in tensors)
    return sum({each.data_ptr(): each.nbytes() for each in storages}.values())


def _tensors(found: Any) -> Iterator[torch.Tensor]:
    """Yield the caches of all layers: one tensor each, or several for models with a state."""
    for each in found.values() if isinstance(found, dict) else found:
        if isinstance(each, dict | list | tuple):
            yield from _tensors(each)
        elif each is not None:
            yield each
