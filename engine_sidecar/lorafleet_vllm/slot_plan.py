"""From an adapter's arena views to the copies that fill one slot, for each kind of vLLM layer."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from lorafleet.errors import InvalidAdapter
from vllm.lora.layers import (
    FusedMoE3DWithLoRA,
    FusedMoEWithLoRA,
    LogitsProcessorWithLoRA,
    VocabParallelEmbeddingWithLoRA,
)
from vllm.lora.layers.base_linear import BaseLinearLayerWithLoRA

from lorafleet_vllm import slot_plan_moe
from lorafleet_vllm.pieces import Fill, Piece
from lorafleet_vllm.slot_factors import Pair, Parts, check_features, factor_a, factor_b
from lorafleet_vllm.slots import GROUP_BYTES, LayerFill, SlotPlan, grouped

if TYPE_CHECKING:
    from collections.abc import Callable

_NUMBER = re.compile(r"\.\d+\.")  # of the layer, in the name of a module


class Limits(NamedTuple):
    """What an engine's slots allow: its max_lora_rank, and bytes that small tensors travel in."""

    rank: int
    group_bytes: int

    @classmethod
    def of(cls, manager: Any) -> Limits:
        """Return the limits of a LoRAModelManager."""
        group_bytes = min(GROUP_BYTES, largest_layer(manager.modules))
        return cls(manager.lora_config.max_lora_rank, group_bytes)


def plan_slot(
    modules: dict[str, Any], parts_of: Callable[[str], Parts], group_bytes: int = GROUP_BYTES
) -> SlotPlan:
    """Return the plan for an adapter; `parts_of` tells a wrapper's pairs when its turn comes.

    Wrappers without parts are zeroed. `group_bytes` bounds the device memory that small tensors
    travel in. Whoever asks for the layers gets InvalidAdapter for what a slot cannot hold.
    """
    layers = (plan_layer(layer, parts_of(wrapper)) for wrapper, layer in modules.items())
    return SlotPlan(grouped(layers, group_bytes))


def plan_layer(layer: Any, pairs: Parts) -> LayerFill:
    """Return one layer's share of a plan. Raises InvalidAdapter for what its slot cannot hold."""
    adapted = any(pair is not None for pair in pairs)
    if not adapted:
        fills = [Fill(slots) for slots in slot_tensors(layer)]
    elif isinstance(layer, FusedMoE3DWithLoRA):
        fills = slot_plan_moe.fused(layer, pairs)
    elif isinstance(layer, FusedMoEWithLoRA):
        fills = slot_plan_moe.split(layer, pairs)
    elif isinstance(layer, VocabParallelEmbeddingWithLoRA | LogitsProcessorWithLoRA):
        fills = _whole(layer, pairs[0])
    else:
        fills = _linear(layer, pairs)
    if not isinstance(layer, FusedMoEWithLoRA):
        return LayerFill(tuple(fills))
    flags = (layer.adapter_enabled,)
    return LayerFill(tuple(fills), flags if adapted else (), () if adapted else flags)


def largest_layer(modules: dict[str, Any]) -> int:
    """Return the bytes that the model's largest layer takes of one slot, all its modules together.

    It is what a fill may take of the device besides: a limit for plans.
    """
    sizes: Counter[str] = Counter()
    for wrapper, layer in modules.items():
        tensors = slot_tensors(layer)
        number = _NUMBER.search(wrapper)
        name = wrapper[: number.end()] if number else wrapper
        if tensors:
            sizes[name] += sum(slots.nbytes for slots in tensors) // len(tensors[0])
    return max(sizes.values(), default=0)


def empty_plan(modules: dict[str, Any]) -> SlotPlan:
    """Return the plan that leaves a slot as if nothing had ever been in it."""
    return plan_slot(modules, lambda _: [])


def slot_tensors(layer: Any) -> list[torch.Tensor]:
    """Return every stacked buffer of one LoRA layer: the memory that its slots take."""
    if isinstance(layer, FusedMoEWithLoRA):
        return [
            *layer.w13_lora_a_stacked,
            *layer.w13_lora_b_stacked,
            *layer.w2_lora_a_stacked,
            *layer.w2_lora_b_stacked,
        ]
    found: list[torch.Tensor] = []
    for name in ("lora_a_stacked", "lora_b_stacked"):
        stacked = getattr(layer, name, ())
        found.extend([stacked] if isinstance(stacked, torch.Tensor) else stacked)
    return found


def _whole(layer: Any, pair: Pair | None) -> list[Fill]:
    """Plan a layer that every rank holds whole: the embedding (A transposed), the logits."""
    assert pair is not None
    b = factor_b(pair.name, layer.lora_b_stacked, pair.b, pair.scaling[0])
    if isinstance(layer, LogitsProcessorWithLoRA):
        return [factor_a(pair.name, layer.lora_a_stacked, pair.a), b]
    rank, vocabulary = pair.a.shape
    slots = layer.lora_a_stacked  # [max_loras, vocabulary, max_rank]
    check_features(pair.name, "lora_embedding_A", [vocabulary], [slots.shape[1]])
    piece = Piece((slice(None), slice(rank)), pair.a.mT)
    zeros = ((slice(None), slice(rank, None)),) if rank < slots.shape[2] else ()
    return [Fill(slots, (piece,), zeros), b]


def _linear(layer: Any, pairs: Parts) -> list[Fill]:
    if not isinstance(layer, BaseLinearLayerWithLoRA):
        names = ", ".join(pair.name for pair in pairs if pair is not None)
        raise InvalidAdapter(f"{names}: a {type(layer).__name__} cannot be filled")
    a, b, scales = _slices(layer, pairs)
    fills: list[Fill] = []
    for index in range(layer.n_slices):
        buffers = layer.lora_a_stacked[index], layer.lora_b_stacked[index]
        if a[index] is None or b[index] is None:
            fills.extend(Fill(slots) for slots in buffers)
            continue
        name = next(pair.name for pair in pairs if pair is not None)
        fills.append(factor_a(name, buffers[0], a[index]))
        fills.append(factor_b(name, buffers[1], b[index], scales[index]))
    return fills


def _slices(layer: Any, pairs: Parts) -> tuple[list[Any], list[Any], list[float]]:
    """Return (A, B, scaling) of each slice of the layer, sharded as vLLM itself shards them."""
    if len(pairs) == 1 and layer.n_slices == 1:
        (pair,) = pairs
        assert pair is not None
        a, b = pair.a, pair.b
        if layer.tp_size > 1:
            return [layer.slice_lora_a(a)], [_row_blocks(layer, b)], [pair.scaling[0]]
        return [a], [b], [pair.scaling[0]]
    factors_a: list[Any] = [None if pair is None else pair.a for pair in pairs]
    factors_b: list[Any] = [None if pair is None else pair.b for pair in pairs]
    if len(pairs) != layer.n_slices:
        factors_a, factors_b = _expand(layer, factors_a, factors_b)
    # Each slice's A is the very object of the pair that it came from, whatever was expanded.
    scale_of = {id(pair.a): pair.scaling[0] for pair in pairs if pair is not None}
    scales = [scale_of.get(id(a), 1.0) for a in factors_a]
    if layer.tp_size > 1:
        factors_a, factors_b = layer.slice_lora_a(factors_a), layer.slice_lora_b(factors_b)
    return factors_a, factors_b, scales


def _row_blocks(layer: Any, b: torch.Tensor) -> list[torch.Tensor]:
    """Return this rank's rows of lora_B as vLLM cuts them, but as views.

    Where they are no single slice (q, k and v of one qkv_proj), vLLM joins copies of them on the
    host: so it is asked to cut the rows' numbers instead.
    """
    numbers = layer.slice_lora_b(torch.arange(b.shape[0]).unsqueeze(1)).flatten()
    gaps = (numbers.diff() != 1).nonzero().flatten() + 1
    return [b[int(run[0]) : int(run[-1]) + 1] for run in numbers.tensor_split(gaps)]


def _expand(layer: Any, a: list[Any], b: list[Any]) -> tuple[list[Any], list[Any]]:
    if len(a) == 1:  # one pair for a layer of several slices
        rows = list(layer.base_layer.output_sizes)
        return a * layer.n_slices, list(b[0].split(rows))
    expanded: tuple[list[Any], list[Any]] = layer.expand_packed_lora(a, b)
    return expanded
