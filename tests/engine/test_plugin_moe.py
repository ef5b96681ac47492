"""Experts: the packed views of the arena fill slots as vLLM's own stacking does.

MoE LoRA has no forward pass on the CPU; loading is the same code as on a GPU.
"""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import tiny_models
import torch
from plugin_requests import load_for_step, ours, stock, stock_is_right
from rank_layers import pairs_of, resized, split_sizes
from slot_judge import judge
from slot_probe import differing, stacked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EXPERTS = {
    "every expert": {},
    "full rank": {"rank": 8, "alpha": 12},
    "experts below the attention's rank": {
        "rank": 8,
        "rank_pattern": {r".*\.experts\..*": 8},
        "alpha_pattern": {r".*\.experts\..*": 5},
    },
    "one expert scaled by a number of its own": {
        "rank": 4,
        "alpha_pattern": {r".*\.experts\.3\.down_proj": 7, r".*\.experts\.5\.gate_proj": 3},
    },
    "root of the rank": {"rank": 2, "alpha": 8, "use_rslora": True},
}


@pytest.fixture(scope="module")
def engine(in_process: Callable[[str], Any]) -> Iterator[Any]:
    started = in_process("moe")
    yield started
    started.clear()


@pytest.fixture(autouse=True)
def _empty(engine: Any) -> None:
    engine.clear()


def stage(engine: Any, name: str, **options: Any) -> tuple[Any, str]:
    folder = engine.folder / name.replace(" ", "-")
    adapter = tiny_models.make_adapter(folder, tiny_models.moe_modules(), seed=5, **options)
    return adapter, engine.arena.add(adapter)


@pytest.mark.parametrize("name", EXPERTS)
def test_expert_slots_of_direct_device_and_stock_are_equal(engine: Any, name: str) -> None:
    adapter, digest = stage(engine, name, **EXPERTS[name])
    right = stock_is_right(EXPERTS[name], experts=True)
    reference = stock(1, adapter) if right else ours(engine.arena.volume, 1, digest)
    expected = load_for_step(engine.lora, reference)
    engine.lora.remove_adapter(1)
    for lora_int_id, loader in ((2, "direct"), (3, "device")):
        request = ours(engine.arena.volume, lora_int_id, digest, loader)
        found = load_for_step(engine.lora, request)
        assert differing(found, expected) == [], loader
        assert judge(engine, lora_int_id, digest) == "", loader
        engine.lora.remove_adapter(lora_int_id)


def test_a_dense_adapter_leaves_the_experts_disabled(engine: Any) -> None:
    modules = {"model.layers.0.self_attn.q_proj": (64, 64), "model.layers.1.mlp.gate": (64, 8)}
    adapter = tiny_models.make_adapter(engine.folder / "attention", modules, seed=6)
    digest = engine.arena.add(adapter)
    expected = load_for_step(engine.lora, stock(1, adapter))
    found = load_for_step(engine.lora, ours(engine.arena.volume, 2, digest))
    assert differing(found, expected) == []
    assert not found["model.layers.0.mlp.experts/adapter_enabled"]


def test_ten_rebuilds_of_device_experts_are_scaled_once(engine: Any) -> None:
    _, digest = stage(engine, "scaled four times", rank=4, alpha=16)
    request = ours(engine.arena.volume, 1, digest, "device")
    expected = load_for_step(engine.lora, request)
    for _ in range(10):
        engine.manager.remove_adapter(1)  # what LRU does: the id stays known
        assert differing(load_for_step(engine.lora, request), expected) == []
    assert engine.residency.stats.offloads == 1
    assert engine.residency.stats.rebuilds == 10


def test_an_eleventh_rebuild_without_a_host_copy_comes_from_the_arena(engine: Any) -> None:
    _, digest = stage(engine, "over the budget", rank=4, alpha=16)
    request = ours(engine.arena.volume, 1, digest, "device")
    expected = load_for_step(engine.lora, request)
    engine.residency.store.drop(1)
    engine.manager.remove_adapter(1)
    assert differing(load_for_step(engine.lora, request), expected) == []
    assert engine.residency.stats.offloads == 2


def test_the_profile_lists_projections_of_all_experts(engine: Any) -> None:
    from lorafleet.profile import ModuleKind

    modules = {name: target.module for name, target in engine.residency.targets.items()}
    gate = modules["model.layers.1.mlp.experts.gate_proj"]
    down = modules["model.layers.1.mlp.experts.down_proj"]
    assert (gate.in_features, gate.out_features, gate.num_experts) == (64, 32, 8)
    assert (down.in_features, down.out_features, down.kind) == (32, 64, ModuleKind.EXPERTS)
    assert [t.part for n, t in engine.residency.targets.items() if ".0.mlp.experts." in n] == [
        0,
        1,
        2,
    ]
    assert "model.layers.0.mlp.gate" in modules


# -- layouts that one CPU engine cannot run: real layer classes with other sizes ----------------


def written(fills: Any, layer: Any) -> dict[str, torch.Tensor]:
    from lorafleet_vllm.slots import LayerFill, write_layer
    from lorafleet_vllm.writing import Blank, Writing

    for tensor in stacked(layer).values():
        tensor.fill_(7)
    write_layer(LayerFill(tuple(fills), (layer.adapter_enabled,)), Writing(1, Blank()))
    return {name: tensor[1].clone() for name, tensor in stacked(layer).items()}


def set_by_vllm(layer: Any, a: list[Any], b: list[Any]) -> dict[str, torch.Tensor]:
    for tensor in stacked(layer).values():
        tensor.fill_(7)
    layer.set_lora(1, a, b)
    return {name: tensor[1].clone() for name, tensor in stacked(layer).items()}


@pytest.mark.parametrize("rank", [0, 1])
def test_tensor_parallel_experts_are_sliced_as_vllm_slices_them(engine: Any, rank: int) -> None:
    from lorafleet_vllm import slot_plan_moe

    layer = resized(engine.manager.modules["model.layers.0.mlp.experts"], tp_size=2, tp_rank=rank)
    pairs = pairs_of(8, split_sizes(), rank=4)
    found = written(slot_plan_moe.split(layer, pairs), layer)
    scaled = [pair.b * 2.5 for pair in pairs]
    assert differing(found, set_by_vllm(layer, [pair.a for pair in pairs], scaled)) == []


def test_expert_parallel_ranks_take_their_own_experts(engine: Any) -> None:
    from lorafleet_vllm import slot_plan_moe

    layer = resized(engine.manager.modules["model.layers.0.mlp.experts"], experts=4, ep_rank=1)
    pairs = pairs_of(8, split_sizes(), rank=8)
    found = written(slot_plan_moe.split(layer, pairs), layer)
    expected = set_by_vllm(layer, [p.a[4:] for p in pairs], [p.b[4:] * 2.5 for p in pairs])
    assert differing(found, expected) == []


@pytest.mark.parametrize("base_model", ["Qwen3MoeForCausalLM", "GptOssForCausalLM"])
@pytest.mark.parametrize(
    "parallel",
    [
        {},
        {"tp_size": 2, "tp_rank": 0},
        {"tp_size": 2, "tp_rank": 1},
        {"tp_size": 2, "tp_rank": 0, "fully": True},
        {"tp_size": 2, "tp_rank": 1, "fully": True},
    ],
)
def test_fused_experts_take_a_shared_gate_and_up_factor(
    engine: Any, base_model: str, parallel: dict[str, Any]
) -> None:
    from dataclasses import replace

    from lorafleet_vllm import slot_plan_moe
    from vllm.lora.layers import FusedMoE3DWithLoRA

    layer = resized(
        engine.manager.modules["model.layers.0.mlp.experts"],
        FusedMoE3DWithLoRA,
        base_model=base_model,
        **parallel,
    )
    gate, down, up = pairs_of(8, split_sizes(), rank=4)
    up = replace(up, a=gate.a.clone())
    found = written(slot_plan_moe.fused(layer, [gate, down, up]), layer)
    if base_model == "GptOssForCausalLM":
        both = torch.stack([gate.b, up.b], dim=2).flatten(1, 2)
    else:
        both = torch.cat([gate.b, up.b], dim=1)
    expected = set_by_vllm(layer, [gate.a, down.a], [both * 2.5, down.b * 2.5])
    assert differing(found, expected) == []


def test_fused_experts_hold_two_factors_at_twice_the_rank(engine: Any) -> None:
    from lorafleet_vllm import slot_plan_moe
    from vllm.lora.layers import FusedMoE3DWithLoRA

    layer = resized(
        engine.manager.modules["model.layers.0.mlp.experts"],
        FusedMoE3DWithLoRA,
        base_model="Qwen3MoeForCausalLM",
    )
    gate, down, up = pairs_of(8, split_sizes(), rank=4)
    found = written(slot_plan_moe.fused(layer, [gate, down, up]), layer)
    a, b = found["w13_lora_a_stacked.0"].double(), found["w13_lora_b_stacked.0"].double()
    wanted = torch.cat([(pair.b * 2.5).double() @ pair.a.double() for pair in (gate, up)], dim=1)
    torch.testing.assert_close(b @ a, wanted)
    with pytest.raises(Exception, match="need rank 16 in fused experts, max_lora_rank is 8"):
        slot_plan_moe.fused(layer, pairs_of(8, split_sizes(), rank=8))


def test_shared_outer_buffers_take_only_equal_experts(engine: Any) -> None:
    from dataclasses import replace

    from lorafleet_vllm import slot_plan_moe

    layer = engine.manager.modules["model.layers.0.mlp.experts"]
    shared = copy.copy(layer)
    shared.__dict__ = {**layer.__dict__, "enable_moe_shared_loras": True}
    config = SimpleNamespace(max_lora_rank=8, lora_dtype=torch.bfloat16)
    shared._create_lora_a_weights(2, config)
    shared._create_lora_b_weights(2, config)
    pairs = pairs_of(8, split_sizes(), rank=4)
    with pytest.raises(Exception, match="lora_A differs between experts"):
        slot_plan_moe.split(shared, pairs)
    w1, w2, w3 = pairs
    w1 = replace(w1, a=w1.a[:1].expand(8, -1, -1))
    w3 = replace(w3, a=w3.a[:1].expand(8, -1, -1))
    w2 = replace(w2, b=w2.b[:1].expand(8, -1, -1))
    found = written(slot_plan_moe.split(shared, [w1, w2, w3]), shared)
    expected = set_by_vllm(
        shared,
        [w1.a[:1], w2.a, w3.a[:1]],
        [w1.b * 2.5, w2.b[:1] * 2.5, w3.b * 2.5],
    )
    assert differing(found, expected) == []


# -- proof ---------------------------------------------------------------------------------------


def experts_of(engine: Any) -> Any:
    return engine.manager.modules["model.layers.1.mlp.experts"]


@pytest.mark.parametrize("loader", ["direct", "device"])
@pytest.mark.parametrize("name", EXPERTS)
def test_right_experts_are_proved(engine: Any, name: str, loader: str) -> None:
    _, digest = stage(engine, name, **EXPERTS[name])
    engine.lora.add_adapter(ours(engine.arena.volume, 1, digest, loader))
    assert judge(engine, 1, digest) == ""
    for other in (2, 3):
        load_for_step(engine.lora, ours(engine.arena.volume, other, digest))
    engine.manager.deactivate_adapter(1)
    assert judge(engine, 1, digest) == ""  # from a scratch


Slot = dict[str, torch.Tensor]
WRONG_EXPERTS: dict[str, tuple[Any, str]] = {
    "an expert transposed": (
        lambda s: s["w2_a"][3].copy_(s["w2_a"][3].mT.reshape(s["w2_a"][3].shape)),
        "down_proj: lora_A",
    ),
    "two experts exchanged": (
        lambda s: s["w13_b1"][2:4].copy_(s["w13_b1"][2:4].flip(0)),
        "up_proj: lora_B",
    ),
    "an expert scaled twice": (lambda s: s["w13_b0"][5].mul_(4), "gate_proj: lora_B"),
    "gate and up exchanged": (
        lambda s: [s[f"w13_{x}0"].copy_(s[f"w13_{x}1"]) for x in "ab"],
        "gate_proj: lora_A in the engine's slot is not what was staged: it is that of model",
    ),
    "the last expert missing": (lambda s: s["w13_a0"][-1].zero_(), "gate_proj: lora_A"),
    "switched off": (
        lambda s: s["enabled"].zero_(),
        "gate_proj: the experts' adapter is switched off (rank 0)",
    ),
}


@pytest.mark.parametrize("name", WRONG_EXPERTS)
def test_wrong_experts_are_caught(engine: Any, name: str) -> None:
    _, digest = stage(engine, "every expert", rank=4, alpha=16)
    engine.lora.add_adapter(ours(engine.arena.volume, 1, digest))
    index = engine.manager.lora_index_to_id.index(1)
    layer = experts_of(engine)
    slot: Slot = {"enabled": layer.adapter_enabled[index : index + 1]}
    slot["w2_a"] = layer.w2_lora_a_stacked[0][index]
    for part in (0, 1):
        slot[f"w13_a{part}"] = layer.w13_lora_a_stacked[part][index]
        slot[f"w13_b{part}"] = layer.w13_lora_b_stacked[part][index]
    spoil, message = WRONG_EXPERTS[name]
    with torch.inference_mode():
        spoil(slot)
    line = judge(engine, 1, digest)
    assert line.startswith(f"model.layers.1.mlp.experts.{message}")


def shares(layer: Any, fills: Any, pairs: Any, fused: Any) -> Any:
    """Write `fills` into slot 1 of `layer`; yield (pair, side, place, fingerprint) as it is read."""
    from lorafleet_vllm.fingerprints import part_fingerprint
    from lorafleet_vllm.slot_reader import expert_parts

    written(fills, layer)
    for pair, projection in zip(pairs, ("gate_proj", "down_proj", "up_proj"), strict=True):
        for part in expert_parts(layer, 1, projection, fused):
            rows = pair.a.shape[1] if part.side == "a" else pair.b.shape[1]
            number = int(part_fingerprint(part.values, part.first, rows))
            yield pair, part.side, (part.first, tuple(part.values.shape)), number


LAYOUTS: dict[str, list[dict[str, Any]]] = {
    "tensor parallel": [{"tp_size": 2, "tp_rank": rank} for rank in (0, 1)],
    "fully sharded": [{"tp_size": 2, "tp_rank": rank, "fully": True} for rank in (0, 1)],
    "expert parallel": [{"experts": 4, "ep_rank": rank} for rank in (0, 1)],
    "one rank": [{}],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fusing", ["split", "fused", "fused, shared"])
@pytest.mark.parametrize("base_model", ["Qwen3MoeForCausalLM", "GptOssForCausalLM"])
def test_the_ranks_shares_of_experts_add_up(
    engine: Any, layout: str, fusing: str, base_model: str
) -> None:
    from dataclasses import replace

    from lorafleet_vllm import slot_plan_moe
    from lorafleet_vllm.fingerprints import part_fingerprint
    from lorafleet_vllm.slot_reader import Fused
    from vllm.lora.layers import FusedMoE3DWithLoRA

    gate, down, up = pairs_of(8, split_sizes(), rank=4)
    if fusing == "fused, shared":
        up = replace(up, a=gate.a.clone())
    pairs, live = [gate, down, up], experts_of(engine)
    fused = Fused(shared=fusing != "fused", gate_rank=4)
    found: dict[tuple[str, str], dict[Any, int]] = {}
    for parallel in LAYOUTS[layout]:
        if fusing == "split":
            layer, plan = resized(live, **parallel), slot_plan_moe.split
        else:
            layer = resized(live, FusedMoE3DWithLoRA, base_model=base_model, **parallel)
            plan = slot_plan_moe.fused
        for pair, side, place, number in shares(layer, plan(layer, pairs), pairs, fused):
            assert found.setdefault((pair.name, side), {}).setdefault(place, number) == number
    for pair in pairs:
        for side, tensor in (("a", pair.a), ("b", pair.b * 2.5)):
            whole = int(part_fingerprint(tensor, (0, 0, 0), tensor.shape[1]))
            assert sum(found[pair.name, side].values()) % 2**64 == whole % 2**64, (pair.name, side)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_rank_reads_only_its_share_of_the_experts(engine: Any, layout: str) -> None:
    from lorafleet_vllm.slot_plan import plan_layer

    pairs, read, storages = pairs_of(8, split_sizes(), rank=8), [], set()
    for parallel in LAYOUTS[layout]:
        layer = plan_layer(resized(experts_of(engine), **parallel), pairs)
        read.append(layer.nbytes)
        sources = [piece.source for fill in layer.fills for piece in fill.pieces]
        storages |= {source.untyped_storage().data_ptr() for source in sources}
    gate, down, up = pairs
    whole = sum(pair.a.nbytes + pair.b.nbytes for pair in pairs)
    # With tensor parallelism vLLM has gate's and up's A and down's B on every rank.
    twice = gate.a.nbytes + up.a.nbytes + down.b.nbytes if layout == "tensor parallel" else 0
    assert read == [(whole + twice) // len(read)] * len(read)
    assert storages == {t.untyped_storage().data_ptr() for p in pairs for t in (p.a, p.b)}


def test_a_fill_may_take_what_one_layer_of_the_model_takes(engine: Any) -> None:
    from lorafleet_vllm.slot_plan import largest_layer, slot_tensors

    layers: dict[str, int] = {}
    for wrapper, layer in engine.manager.modules.items():
        number = ".".join(wrapper.split(".")[:3])  # model.layers.1
        share = sum(slots[0].nbytes for slots in slot_tensors(layer))
        layers[number] = layers.get(number, 0) + share
    assert largest_layer(engine.manager.modules) == max(layers.values())
