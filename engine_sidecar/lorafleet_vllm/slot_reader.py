"""Where one rank's slot holds a canonical tensor, by vLLM's own rules for its base layers.

This is the proof's way into the slots and shares nothing with `targets` and `slot_plan`, which fill
them: which rows of a layer's output are q or gate is what vLLM itself uses to load the base model's
weights (`hf_to_vllm_mapper` and the linear layers' shards); which buffer makes these rows is the
order of the layer's output slices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from lorafleet.errors import EngineRejected
from vllm.lora.layers import (
    FusedMoE3DWithLoRA,
    FusedMoEWithLoRA,
    LogitsProcessorWithLoRA,
    VocabParallelEmbeddingWithLoRA,
)
from vllm.lora.layers.base_linear import BaseLinearLayerWithLoRA
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

_SHARDS: dict[str, Any] = {
    "q_proj": "q",
    "k_proj": "k",
    "v_proj": "v",
    "gate_proj": 0,
    "up_proj": 1,
}
"""What the usual names mean where the model has no mapper."""
UNKNOWN = "?"
_EXPERT_PARTS = {
    "gate_proj": "w1",
    "down_proj": "w2",
    "up_proj": "w3",
}


class Part(NamedTuple):
    """Values of a canonical lora_A or lora_B as they lie in a slot.

    `values` is [experts, rows, cols]; `first` is the (expert, row, column) of the canonical tensor
    that its first value is.
    """

    side: str  # "a" or "b"
    values: torch.Tensor
    first: tuple[int, int, int] = (0, 0, 0)


@dataclass(frozen=True)
class Fused:
    """How fused experts keep gate and up: with one lora_A for both, or gate's before up's."""

    shared: bool
    gate_rank: int


class Segment(NamedTuple):
    """Rows of a layer's output on this rank: [start, stop) of it, from row `first` of the shard."""

    start: int
    stop: int
    first: int
    total: int  # rows of the whole shard, on all ranks


def shard_of(model: Any, name: str) -> Any:
    """Return what part of its packed layer vLLM loads the weight `name` into, or UNKNOWN."""
    mapper = getattr(model, "hf_to_vllm_mapper", None)
    stacked = getattr(mapper, "orig_to_new_stacked", None) or {}
    for pattern, (_, shard) in stacked.items():
        if pattern in f".{name}.weight":
            return shard
    return _SHARDS.get(name.rpartition(".")[2], UNKNOWN)


def linear_parts(layer: Any, index: int, shard: Any, part: int = 0) -> Iterator[Part]:
    """Yield where slot `index` of a linear layer holds the pair of one shard (None: all of it).

    `shard` may be several: a tuple for rows one below the other, a list for copies of the same rows.
    `part` is the module's position among the layer's, for a base layer whose shards vLLM names in a
    way that is not known here; then, and only then, the proof trusts the order that the filling
    trusts too. Raises EngineRejected where that says too little, with tensor parallelism.
    """
    segments = _segments(layer.base_layer)
    wanted = list(segments) if shard is None else [shard]
    if isinstance(shard, list | tuple):
        wanted = list(shard)
    if any(key not in segments for key in wanted) and len(segments) == layer.n_slices:
        wanted = [list(segments)[part]]
    elif any(key not in segments for key in wanted):
        if layer.tp_size > 1 or part >= layer.n_slices:
            kind = type(layer.base_layer).__name__
            raise EngineRejected(f"shard {shard!r} of a {kind} cannot be read back")
        start = sum(layer.output_slices[:part])
        rows = layer.output_slices[part]
        segments, wanted = {part: Segment(start, start + rows, 0, rows)}, [part]
    starts = [sum(layer.output_slices[:i]) for i in range(layer.n_slices)]
    full_rank = layer.lora_b_stacked[0].shape[-1]
    before = 0  # rows of the module in the shards that come first
    for key in wanted:
        segment = segments[key]
        for slice_index, start in enumerate(starts):
            b = layer.lora_b_stacked[slice_index][index]
            low, high = max(segment.start, start), min(segment.stop, start + b.shape[1])
            if low >= high:
                continue
            a = layer.lora_a_stacked[slice_index][index]
            row = layer.tp_rank * a.shape[1] if a.shape[1] < full_rank else 0
            sharded = isinstance(layer.base_layer, RowParallelLinear) and layer.tp_size > 1
            yield Part("a", a, (0, row, layer.tp_rank * a.shape[2] if sharded else 0))
            row = before + segment.first + low - segment.start
            if sharded and b.shape[1] < layer.base_layer.output_size:
                row = layer.tp_rank * b.shape[1]
            yield Part("b", b[:, low - start : high - start], (0, row, 0))
        before += 0 if isinstance(shard, list) else segment.total


def _segments(base: Any) -> dict[Any, Segment]:
    found: dict[Any, Segment] = {}
    if isinstance(base, QKVParallelLinear):
        for key, rank, copies in (
            ("q", base.tp_rank, base.tp_size),
            ("k", base.tp_rank // base.num_kv_head_replicas, 0),
            ("v", base.tp_rank // base.num_kv_head_replicas, 0),
        ):
            size = base._get_shard_size_mapping(key)
            start = base._get_shard_offset_mapping(key)
            copies = copies or base.tp_size // base.num_kv_head_replicas
            found[key] = Segment(start, start + size, rank * size, size * copies)
        return found
    if isinstance(base, MergedColumnParallelLinear):
        start = 0
        for number, total in enumerate(base.output_sizes):
            size = total // base.tp_size
            found[number] = Segment(start, start + size, base.tp_rank * size, total)
            start += size
        return found
    if isinstance(base, ColumnParallelLinear):
        size = base.output_size_per_partition
        return {0: Segment(0, size, base.tp_rank * size, base.output_size)}
    return {0: Segment(0, base.output_size, 0, base.output_size)}


def whole_parts(layer: Any, index: int) -> Iterator[Part]:
    """Yield the pair of an embedding (whose lora_A lies transposed) or of the logits."""
    a, b = layer.lora_a_stacked[index], layer.lora_b_stacked[index]
    yield Part("a", a.mT.unsqueeze(0) if isinstance(layer, VocabParallelEmbeddingWithLoRA) else a)
    yield Part("b", b)


def expert_parts(layer: Any, index: int, projection: str, fused: Fused) -> Iterator[Part]:
    """Yield the pair of one projection of all experts that this rank has."""
    part = _EXPERT_PARTS.get(projection, projection)
    expert = layer.ep_rank * layer.local_num_experts if layer.use_ep else 0
    middle = layer.tp_rank * layer.intermediate_size_per_partition
    if part == "w2":
        a, b = layer.w2_lora_a_stacked[0][index], layer.w2_lora_b_stacked[0][index]
        row = layer.tp_rank * b.shape[1] if b.shape[1] < layer.hidden_size else 0
        yield Part("a", _each(layer, a), (expert, 0, middle))
        yield Part("b", _each(layer, b), (expert, row, 0))
        return
    if isinstance(layer, FusedMoE3DWithLoRA):
        yield from _fused_parts(layer, index, part, fused, (expert, middle))
        return
    gated = layer._w13_slices == 2
    buffer = 1 if gated and part == "w3" else 0
    a, b = layer.w13_lora_a_stacked[buffer][index], layer.w13_lora_b_stacked[buffer][index]
    row = layer.tp_rank * a.shape[1] if a.shape[1] < b.shape[2] else 0
    yield Part("a", _each(layer, a), (expert, row, 0))
    yield Part("b", _each(layer, b), (expert, middle, 0))


def _fused_parts(
    layer: Any, index: int, part: str, fused: Fused, first: tuple[int, int]
) -> Iterator[Part]:
    """Yield gate's or up's pair; `first` is the expert and the row of its B that come first."""
    a, b = layer.w13_lora_a_stacked[0][index], layer.w13_lora_b_stacked[0][index]
    half, up, rank = b.shape[1] // 2, part == "w3", b.shape[2]
    if layer._base_model == "GptOssForCausalLM":
        rows = b[:, up::2]
    else:
        rows = b[:, half:] if up else b[:, :half]
    expert, middle = first
    row = layer.tp_rank * a.shape[1] if a.shape[1] < rank else 0
    cut = min(max(fused.gate_rank - row, 0), a.shape[1])  # where up's A begins on this rank
    if fused.shared:
        yield Part("a", a, (expert, row, 0))
        yield Part("b", rows, (expert, middle, 0))
    elif up:
        yield Part("a", a[:, cut:], (expert, max(row - fused.gate_rank, 0), 0))
        yield Part("b", rows[..., fused.gate_rank :], (expert, middle, 0))
        # gate's columns: zero in up's rows
        yield Part("b", rows[..., : fused.gate_rank], (expert, middle, rank))
    else:
        yield Part("a", a[:, :cut], (expert, row, 0))
        yield Part("b", rows, (expert, middle, 0))


def _each(layer: Any, factor: torch.Tensor) -> torch.Tensor:
    """Return a factor that all experts share as if each had its own."""
    if factor.shape[0] == 1 < layer.local_num_experts:
        return factor.expand(layer.local_num_experts, -1, -1)
    return factor


def readable(layer: Any) -> bool:
    """Whether the slots of `layer` can be read back."""
    if isinstance(layer, LogitsProcessorWithLoRA) and layer.lora_a_stacked.is_meta:
        return False  # a head that the model was made without
    return isinstance(
        layer,
        BaseLinearLayerWithLoRA
        | FusedMoEWithLoRA
        | LogitsProcessorWithLoRA
        | VocabParallelEmbeddingWithLoRA,
    )
