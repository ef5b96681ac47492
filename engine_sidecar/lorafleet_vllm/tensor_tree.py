"""The tensors of a LoRAModel, wherever vLLM keeps them: a pair, or lists with gaps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch


def model_tensors(model: Any) -> Iterator[torch.Tensor]:
    """Yield every factor that `model` holds; one that occurs twice is yielded twice."""
    for weights in model.loras.values():
        for factor in (weights.lora_a, weights.lora_b):
            yield from (t for t in _listed(factor) if t is not None)


def replace_tensors(model: Any, new: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Put `new(tensor)` in the place of every factor of `model`."""
    for weights in model.loras.values():
        weights.lora_a = _replaced(weights.lora_a, new)
        weights.lora_b = _replaced(weights.lora_b, new)


def _listed(factor: Any) -> list[torch.Tensor | None]:
    return list(factor) if isinstance(factor, list | tuple) else [factor]


def _replaced(factor: Any, new: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(factor, list | tuple):
        return [None if tensor is None else new(tensor) for tensor in factor]
    return None if factor is None else new(factor)
