"""Layouts that one CPU engine cannot run: vLLM's real layers with the sizes of one rank of several."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch


def rank_of(
    layer: Any, size: int, rank: int, *, fully: bool = False, cls: type | None = None
) -> Any:
    """Return `layer` as rank `rank` of `size` has it, with slots of its own.

    `cls` is another of vLLM's layer classes for the same base layer.
    """
    from vllm.lora.layers import column_parallel_linear as column
    from vllm.lora.layers import row_parallel_linear as row
    from vllm.model_executor.layers.linear import QKVParallelLinear, RowParallelLinear

    base = copy.copy(layer.base_layer)
    base.__dict__ = dict(base.__dict__)
    base.tp_size, base.tp_rank = size, rank
    if isinstance(base, RowParallelLinear):
        base.input_size_per_partition = base.input_size // size
    else:
        base.output_size_per_partition = base.output_size // size
    if isinstance(base, QKVParallelLinear):
        base.num_heads = base.total_num_heads // size
        base.num_kv_heads = max(1, base.total_num_kv_heads // size)
        base.num_kv_head_replicas = max(1, size // base.total_num_kv_heads)
        heads = (base.num_heads, base.num_kv_heads, base.num_kv_heads)
        base.output_sizes = [count * base.head_size * size for count in heads]
    cls = cls or type(layer)
    if fully:
        name = cls.__name__.replace("WithLoRA", "WithShardedLoRA")
        cls = getattr(row if isinstance(base, RowParallelLinear) else column, name, cls)
    made = cls.__new__(cls)
    torch.nn.Module.__init__(made)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "vllm.lora.layers.base_linear._get_lora_device", lambda _: torch.device("cpu")
        )
        made.__class__.__init__(made, base)
    config = SimpleNamespace(max_lora_rank=8, lora_dtype=torch.bfloat16, fully_sharded_loras=fully)
    made.create_lora_weights(2, config)
    return made


def pairs_of(experts: int, sizes: tuple[tuple[int, int], ...], rank: int, seed: int = 1) -> Any:
    """Return a Pair of random packed tensors for each (in, out)."""
    from lorafleet_vllm.slot_factors import Pair

    generator = torch.Generator().manual_seed(seed)
    return [
        Pair(
            f"experts.w{index}",
            torch.randn(experts, rank, wide, generator=generator).bfloat16(),
            torch.randn(experts, out, rank, generator=generator).bfloat16(),
            (2.5,),
        )
        for index, (wide, out) in enumerate(sizes)
    ]


def resized(layer: Any, cls: type | None = None, **parallel: Any) -> Any:
    """Return a copy of a live MoE layer as another rank of another layout sees it.

    `parallel`: tp_size, tp_rank, fully; experts (of this rank) and ep_rank; base_model with `cls`.
    """
    other = copy.copy(layer)
    other.__dict__ = dict(layer.__dict__)
    if cls is not None:
        other.__class__ = cls
    experts = parallel.get("experts", 8)
    other.__dict__["moe_config"] = SimpleNamespace(
        hidden_dim=64,
        num_experts=8,
        num_local_experts=experts,
        intermediate_size_per_partition=32 // parallel.get("tp_size", 1),
        is_act_and_mul=True,
        moe_parallel_config=SimpleNamespace(use_ep=experts < 8, ep_rank=parallel.get("ep_rank", 0)),
    )
    other.__dict__["tp_size"] = parallel.get("tp_size", 1)
    other.__dict__["tp_rank"] = parallel.get("tp_rank", 0)
    other.__dict__["fully_sharded"] = parallel.get("fully", False)
    if cls is not None:
        other.__dict__["_w13_slices"] = 1
        other.__dict__["_base_model"] = parallel["base_model"]
    config = SimpleNamespace(max_lora_rank=8, lora_dtype=torch.bfloat16)
    other._create_lora_a_weights(2, config)
    other._create_lora_b_weights(2, config)
    other.__dict__["adapter_enabled"] = torch.zeros(3, dtype=torch.int)
    return other


def split_sizes() -> tuple[tuple[int, int], ...]:
    return ((64, 32), (32, 64), (64, 32))


def pairs_for(engine: Any, wrapper: str, rank: int = 6) -> list[Any]:
    """Return random pairs for the parts of a layer, in one piece of memory."""
    from lorafleet_vllm.slot_factors import Pair

    targets = [t for t in engine.residency.targets.values() if t.wrapper == wrapper]
    sizes = [(t.module.in_features, t.module.out_features) for t in targets]
    memory = torch.randn(sum(rank * (wide + out) for wide, out in sizes)).bfloat16()
    pairs = []
    for wide, out in sizes:
        a, b, memory = memory.split([rank * wide, rank * out, memory.numel() - rank * (wide + out)])
        pairs.append(Pair(wrapper, a.view(rank, wide), b.view(out, rank), (1.7,)))
    return pairs


def bytes_read(plan: Any, pairs: list[Any]) -> int:
    """Return what a plan's copies read; all of it must lie where the adapter lies."""
    (whole,) = {pair.a.untyped_storage().data_ptr() for pair in pairs}
    fills = [fill for layer in plan.layers for fill in layer.fills]
    sources = [piece.source for fill in fills for piece in fill.pieces]
    assert {source.untyped_storage().data_ptr() for source in sources} == {whole}
    assert plan.nbytes == sum(source.nbytes for source in sources)
    copied = 0
    for layer in plan.layers:
        copies = layer.copies
        for way in (*copies.first, *copies.rest, *copies.detours):
            copied += sum(run.nbytes for run in getattr(way, "runs", None) or [way.source])
    assert copied == plan.nbytes
    nbytes: int = plan.nbytes
    return nbytes
