"""The fused experts' share of a slot: expert-parallel and tensor-parallel views of packed tensors.

The arena holds one projection of all experts side by side, [experts, rank, in] and
[experts, out, rank], which is the form that vLLM's buffers have: most copies are whole views.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from lorafleet.errors import InvalidAdapter
from vllm.lora.layers import FusedMoEWithLoRA

from lorafleet_vllm.pieces import Fill, Piece, Region, Scale
from lorafleet_vllm.slot_factors import factor_a, factor_b

if TYPE_CHECKING:
    from lorafleet_vllm.slot_factors import Pair, Parts


def split(layer: Any, pairs: Parts) -> list[Fill]:
    """Plan a FusedMoEWithLoRA: w1 and w3 in buffers of their own (w3 only if gated)."""
    w1, w2, *rest = pairs
    fills: list[Fill] = []
    for position, pair in enumerate([w1, *rest][: layer._w13_slices]):
        buffers = layer.w13_lora_a_stacked[position], layer.w13_lora_b_stacked[position]
        fills.extend(_projection(layer, pair, buffers, (layer._slice_w13_a, layer._slice_w13_b)))
    buffers = layer.w2_lora_a_stacked[0], layer.w2_lora_b_stacked[0]
    fills.extend(_projection(layer, w2, buffers, (layer._slice_w2_a, layer._slice_w2_b)))
    return fills


def fused(layer: Any, pairs: Parts) -> list[Fill]:
    """Plan a FusedMoE3DWithLoRA, whose gate and up share one lora_A of the buffer's rank.

    An adapter whose gate and up have the same lora_A fits as it is; otherwise the two become one
    pair of twice the rank: A on top of A, B block-diagonal.
    """
    w1, w2, w3 = pairs
    if w1 is None or w3 is None:
        where = next(pair.name for pair in pairs if pair is not None)
        raise InvalidAdapter(
            f"{where}: an engine with fused gate_up experts takes adapters of gate_proj and "
            "up_proj together"
        )
    slots_a, slots_b = layer.w13_lora_a_stacked[0], layer.w13_lora_b_stacked[0]
    a1, b1, scale1 = _local(layer, w1)
    a3, b3, scale3 = _local(layer, w3)
    # Each of the two is cut as where it has a buffer of its own.
    b1, b3 = (FusedMoEWithLoRA._slice_w13_b(layer, b) for b in (b1, b3))
    shared = _same_a(w1, w3)
    rank1 = a1.shape[1]
    stack = [a1] if shared else [a1, a3]
    rank = sum(a.shape[1] for a in stack)
    if rank > slots_b.shape[3]:
        raise InvalidAdapter(
            f"{w1.name}: gate and up with lora_A of their own need rank {rank} in fused experts, "
            f"max_lora_rank is {slots_b.shape[3]}"
        )
    rows_gate, rows_up = _gate_up_rows(layer, b1.shape[1])
    pieces_b = (
        Piece((rows_gate, slice(rank1)), b1, scale1),
        Piece((rows_up, slice(0 if shared else rank1, rank)), b3, scale3),
    )
    corners: list[Region] = [(slice(None), slice(rank, None))]
    if not shared:
        corners += [(rows_gate, slice(rank1, rank)), (rows_up, slice(rank1))]
    buffers = layer.w2_lora_a_stacked[0], layer.w2_lora_b_stacked[0]
    return [
        _stacked(slots_a, stack, layer.tp_rank * slots_a.shape[2] if layer.fully_sharded else 0),
        Fill(slots_b, pieces_b, tuple(corners)),
        *_projection(layer, w2, buffers, (layer._slice_w2_a, layer._slice_w2_b)),
    ]


def _same_a(left: Pair, right: Pair) -> bool:
    if left.fingerprint_a and right.fingerprint_a:
        return left.fingerprint_a == right.fingerprint_a
    return bool(torch.equal(left.a, right.a))


def _stacked(slots: torch.Tensor, stack: list[torch.Tensor], start: int) -> Fill:
    """Return the fill of rows [start, start + the buffer's rank) of factors on top of each other."""
    stop, above = start + slots.shape[2], 0
    pieces = []
    for a in stack:
        low, high = max(start, above), min(stop, above + a.shape[1])
        if low < high:
            rows = slice(low - start, high - start)
            pieces.append(Piece((rows, slice(None)), a[:, low - above : high - above]))
        above += a.shape[1]
    return Fill(slots, tuple(pieces), ((slice(max(above - start, 0), None), slice(None)),))


def _gate_up_rows(layer: Any, size: int) -> tuple[slice, slice]:
    if layer._base_model == "GptOssForCausalLM":  # its checkpoints interleave gate and up
        return slice(0, None, 2), slice(1, None, 2)
    return slice(0, size), slice(size, 2 * size)


def _projection(
    layer: Any,
    pair: Pair | None,
    buffers: tuple[torch.Tensor, torch.Tensor],
    shard: tuple[Any, Any],
) -> list[Fill]:
    if pair is None:
        return [Fill(slots) for slots in buffers]
    a, b, scale = _local(layer, pair)
    a = shard[0](_match(pair.name, "lora_A", a, buffers[0]))
    b = shard[1](_match(pair.name, "lora_B", b, buffers[1]))
    if isinstance(scale, torch.Tensor) and b.shape[0] == 1 < scale.shape[0]:
        raise InvalidAdapter(f"{pair.name}: experts that share lora_B have different scalings")
    return [
        factor_a(pair.name, buffers[0], a),
        factor_b(pair.name, buffers[1], b, scale),
    ]


def _local(layer: Any, pair: Pair) -> tuple[torch.Tensor, torch.Tensor, Scale]:
    """Return this rank's experts of a pair.

    What is not there for each of all experts is shared, or vLLM has cut it already.
    """
    a, b, scaling = pair.a, pair.b, pair.scaling
    if layer.use_ep:
        start = layer.ep_rank * layer.local_num_experts
        local, every = slice(start, start + layer.local_num_experts), layer.global_num_experts
        a, b = (factor[local] if len(factor) == every else factor for factor in (a, b))
        scaling = scaling[local] if len(scaling) == every else scaling
    return a, b, _scale(scaling)


def _scale(scaling: tuple[float, ...]) -> Scale:
    if len(set(scaling)) == 1:
        return scaling[0]
    # float32, because that is what torch multiplies a bfloat16 tensor by a Python number in.
    values = torch.tensor(scaling, dtype=torch.float32).view(-1, 1, 1)
    return values.pin_memory() if torch.cuda.is_available() else values


def _match(name: str, factor: str, source: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Return `source` for a buffer that keeps one copy for all experts, if they are equal."""
    if slots.shape[1] == source.shape[0] or slots.shape[1] != 1:
        return source
    if not torch.equal(source, source[:1].expand_as(source)):
        raise InvalidAdapter(
            f"{name}: {factor} differs between experts, but the engine runs with "
            "enable_moe_shared_loras"
        )
    return source[:1]
