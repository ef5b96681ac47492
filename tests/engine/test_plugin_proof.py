"""What lies in a slot is compared with the image, and every way of being wrong is told."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import tiny_models
import torch
from plugin_requests import ours
from rank_layers import rank_of
from slot_judge import judge

if TYPE_CHECKING:
    from collections.abc import Iterator

EVERYTHING = {**tiny_models.dense_modules(), **tiny_models.head_modules()}
LAYER = "model.layers.1"


@pytest.fixture(autouse=True)
def _empty(engine: Any) -> Iterator[None]:
    engine.clear()
    targets = dict(engine.residency.targets)
    yield
    engine.residency.targets = targets


def stage(engine: Any, seed: int = 1, only: tuple[str, ...] = ("",), **options: Any) -> str:
    modules = {name: size for name, size in EVERYTHING.items() if name.endswith(only)}
    options = {"rank": 6, "alpha": 10, **options}
    adapter = tiny_models.make_adapter(
        engine.folder / f"proof-{seed}-{'-'.join(only)}", modules, seed=seed, **options
    )
    digest: str = engine.arena.add(adapter)
    return digest


def load(engine: Any, lora_int_id: int, digest: str, loader: str = "direct") -> int | None:
    """Load as the control socket does; returns the slot, if one was free."""
    engine.lora.add_adapter(ours(engine.arena.volume, lora_int_id, digest, loader))
    slots = engine.manager.lora_index_to_id
    return slots.index(lora_int_id) if lora_int_id in slots else None


@pytest.mark.parametrize("loader", ["direct", "device"])
@pytest.mark.parametrize("only", [("",), ("q_proj", "v_proj", "up_proj"), ("embed_tokens",)])
def test_a_right_slot_is_proved(engine: Any, loader: str, only: tuple[str, ...]) -> None:
    digest = stage(engine, only=only)
    assert load(engine, 1, digest, loader) is not None
    assert judge(engine, 1, digest) == ""


@pytest.mark.parametrize("loader", ["direct", "device"])
def test_an_adapter_without_a_slot_is_proved_and_takes_none(engine: Any, loader: str) -> None:
    digest = stage(engine)
    for other in (1, 2):
        load(engine, other, stage(engine, seed=other + 1))
    assert load(engine, 3, digest, loader) is None
    assert judge(engine, 3, digest) == ""
    assert engine.manager.lora_index_to_id == [1, 2]
    for other in (1, 2):
        assert judge(engine, other, stage(engine, seed=other + 1)) == ""


@pytest.mark.parametrize("with_slot", [True, False])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (f"{LAYER}.mlp.gate_proj", f"{LAYER}.mlp.up_proj"),
        (f"{LAYER}.self_attn.k_proj", f"{LAYER}.self_attn.v_proj"),
        (f"{LAYER}.self_attn.o_proj", "model.layers.0.self_attn.o_proj"),
    ],
)
def test_one_module_loaded_as_another_of_its_shape_is_caught(
    engine: Any, one: str, other: str, with_slot: bool
) -> None:
    targets = engine.residency.targets
    swapped = {
        one: replace(targets[one], wrapper=targets[other].wrapper, part=targets[other].part),
        other: replace(targets[other], wrapper=targets[one].wrapper, part=targets[one].part),
    }
    engine.residency.targets = {**targets, **swapped}
    if not with_slot:
        for filler in (8, 9):
            load(engine, filler, stage(engine, seed=filler, only=("q_proj",)))
    digest = stage(engine)
    assert (load(engine, 1, digest) is not None) == with_slot
    line = judge(engine, 1, digest)
    first, second = sorted((one, other))
    assert f"{first}: lora_A in the engine's slot is not what was staged: it is that of" in line
    assert second in line


def pair(engine: Any, wrapper: str, part: int, index: int) -> tuple[torch.Tensor, torch.Tensor]:
    layer = engine.manager.modules[wrapper]
    return layer.lora_a_stacked[part][index, 0], layer.lora_b_stacked[part][index, 0]


Spoil = "Callable[[torch.Tensor, torch.Tensor], Any]"
SPOILS: dict[str, tuple[Any, str]] = {
    "scaled twice": (lambda a, b: b.mul_(10 / 6), "lora_B in the engine's slot is not what"),
    "not scaled": (lambda a, b: b.div_(10 / 6), "lora_B in the engine's slot is not what"),
    "filled by half": (lambda a, b: b[64:].zero_(), "lora_B in the engine's slot is not what"),
    "empty": (lambda a, b: a.zero_(), "lora_A in the engine's slot is not what was staged: it is"),
    "one bit": (lambda a, b: a.view(torch.int16)[3, 100:101].bitwise_xor_(1), "lora_A in the eng"),
    "two rows exchanged": (lambda a, b: a[:2].copy_(a[:2].flip(0)), "lora_A in the engine's slot"),
    "two columns exchanged": (lambda a, b: b[:, :2].copy_(b[:, :2].flip(1)), "lora_B in the en"),
    "a square transposed": (lambda a, b: a[:6, :6].copy_(a[:6, :6].mT.clone()), "lora_A in the"),
    "rank padding": (lambda a, b: b[7, 7:].fill_(1), "lora_B in the engine's slot is not what"),
}


@pytest.mark.parametrize("name", SPOILS)
def test_a_spoiled_slot_is_caught(engine: Any, name: str) -> None:
    digest = stage(engine)
    index = load(engine, 1, digest)
    assert index is not None
    spoil, message = SPOILS[name]
    with torch.inference_mode():
        spoil(*pair(engine, f"{LAYER}.self_attn.qkv_proj", 1, index))
    line = judge(engine, 1, digest)
    assert line.startswith(f"{LAYER}.self_attn.k_proj: {message}")


def test_values_in_a_module_that_the_adapter_does_not_touch_are_caught(engine: Any) -> None:
    digest = stage(engine, only=("q_proj",))
    index = load(engine, 1, digest)
    assert index is not None
    with torch.inference_mode():
        pair(engine, f"{LAYER}.self_attn.qkv_proj", 1, index)[1][0, 0] = 1
    assert judge(engine, 1, digest) == (
        f"{LAYER}.self_attn.k_proj: lora_B in the engine's slot holds values where there must be "
        "none (rank 0)"
    )


def test_a_slot_overwritten_by_another_adapter_is_caught(engine: Any) -> None:
    from lorafleet_vllm.slots import write_plan

    mine, others = stage(engine), stage(engine, seed=7)
    index = load(engine, 1, mine)
    load(engine, 2, others)
    assert index is not None
    write_plan(engine.manager.get_adapter(2).plan, index)
    assert "is not what was staged" in judge(engine, 1, mine)
    assert judge(engine, 2, others) == ""


def test_a_module_that_no_worker_shows_is_told(engine: Any) -> None:
    digest = stage(engine)
    load(engine, 1, digest)
    targets = engine.residency.targets
    engine.residency.targets = {n: t for n, t in targets.items() if n != "lm_head"}
    assert judge(engine, 1, digest) == "lm_head: no worker shows it in its slots"


# -- tensor parallelism: real layers with the sizes that one rank of several has ----------------


@pytest.mark.parametrize("fully", [False, True])
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(
    ("wrapper", "names"),
    [
        ("self_attn.qkv_proj", ("q_proj", "k_proj", "v_proj")),
        ("mlp.gate_up_proj", ("gate_proj", "up_proj")),
        ("self_attn.o_proj", ("o_proj",)),
        ("mlp.down_proj", ("down_proj",)),
    ],
)
def test_the_ranks_shares_add_up_to_the_whole(
    engine: Any, wrapper: str, names: tuple[str, ...], size: int, fully: bool
) -> None:
    from lorafleet_vllm.fingerprints import part_fingerprint
    from lorafleet_vllm.slot_factors import Pair
    from lorafleet_vllm.slot_plan import plan_slot
    from lorafleet_vllm.slot_reader import linear_parts, shard_of
    from lorafleet_vllm.slots import write_plan

    layer = engine.manager.modules[f"{LAYER}.{wrapper}"]
    prefix = f"{LAYER}.{wrapper.partition('.')[0]}."
    sizes = [EVERYTHING[prefix + name] for name in names]
    pairs = [
        Pair(name, torch.randn(6, wide).bfloat16(), torch.randn(out, 6).bfloat16(), (1.7,))
        for name, (wide, out) in zip(names, sizes, strict=True)
    ]
    found: dict[tuple[str, str], dict[Any, int]] = {}
    for rank in range(size):
        mine = rank_of(layer, size, rank, fully=fully)
        write_plan(plan_slot({wrapper: mine}, lambda _: list(pairs)), 1)
        for each in pairs:
            shard = shard_of(engine.manager.model, prefix + each.name) if len(names) > 1 else None
            for part in linear_parts(mine, 1, shard):
                rows = 6 if part.side == "a" else each.b.shape[0]
                number = int(part_fingerprint(part.values, part.first, rows))
                place = (part.first, tuple(part.values.shape))
                assert found.setdefault((each.name, part.side), {}).setdefault(place, number) == (
                    number
                )
    for each in pairs:
        for side, tensor in (("a", each.a), ("b", each.b * 1.7)):
            whole = int(part_fingerprint(tensor.unsqueeze(0), (0, 0, 0), tensor.shape[0]))
            assert sum(found[each.name, side].values()) % 2**64 == whole % 2**64, (each.name, side)


def test_a_layer_whose_shards_are_not_known_is_read_in_its_own_order(engine: Any) -> None:
    from lorafleet.errors import EngineRejected
    from lorafleet_vllm.slot_reader import UNKNOWN, linear_parts

    layer = engine.manager.modules[f"{LAYER}.self_attn.qkv_proj"]
    for mine in (layer, rank_of(layer, 2, 1)):
        known = list(linear_parts(mine, 0, "v"))
        found = list(linear_parts(mine, 0, UNKNOWN, part=2))
        assert [p.values.data_ptr() for p in found] == [p.values.data_ptr() for p in known]
        assert [p.first for p in found] == [p.first for p in known]
    odd = rank_of(layer, 2, 0)
    odd.n_slices = 2  # neither one buffer for each shard nor all in one
    with pytest.raises(
        EngineRejected, match="shard 'index_q' of a QKVParallelLinear cannot be read"
    ):
        list(linear_parts(odd, 0, "index_q", part=1))
