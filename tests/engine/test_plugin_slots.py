"""Both loaders put the very bits into a slot that stock vLLM puts there from disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import tiny_models
import torch
from plugin_requests import load_for_step, ours, stock, stock_is_right
from rank_layers import bytes_read, pairs_for, rank_of
from slot_judge import judge
from slot_probe import differing, snapshot, soil, stacked

if TYPE_CHECKING:
    from pathlib import Path

ADAPTERS: dict[str, dict[str, Any]] = {
    "every linear module, rank below max_lora_rank": {"rank": 4, "alpha": 16},
    "rank 8 of 8, alpha over the root of the rank": {"rank": 8, "alpha": 3, "use_rslora": True},
    "scaling one": {"rank": 2, "alpha": 2},
    "attention alone, two of three projections": {"only": ("q_proj", "v_proj"), "rank": 6},
    "embedding and head": {"heads": True, "rank": 3, "alpha": 7},
    "patterns per layer": {
        "rank": 4,
        "alpha_pattern": {r"layers\.1\..*q_proj": 5},
    },
}


@pytest.fixture(autouse=True)
def _empty(engine: Any) -> None:
    engine.clear()


def make(folder: Path, name: str, seed: int = 1) -> Path:
    options = dict(ADAPTERS[name])
    modules = tiny_models.dense_modules()
    if options.pop("heads", False):
        modules = tiny_models.head_modules()
    only = options.pop("only", None)
    if only:
        modules = {key: size for key, size in modules.items() if key.endswith(only)}
    return tiny_models.make_adapter(folder / name.replace(" ", "-"), modules, seed=seed, **options)


def slot_of(engine: Any, lora_int_id: int) -> int:
    index: int = engine.manager.lora_index_to_id.index(lora_int_id)
    return index


def load(engine: Any, wanted: Any) -> dict[str, Any]:
    return load_for_step(engine.lora, wanted)


def request(engine: Any, lora_int_id: int, digest: str, loader: str = "direct") -> Any:
    return ours(engine.residency.volume.root, lora_int_id, digest, loader)


@pytest.mark.parametrize("name", ADAPTERS)
def test_slots_of_direct_device_and_stock_are_equal_bit_by_bit(engine: Any, name: str) -> None:
    adapter = make(engine.folder, name)
    digest = engine.arena.add(adapter)
    reference = stock(1, adapter) if stock_is_right(ADAPTERS[name]) else request(engine, 1, digest)
    expected = load(engine, reference)
    engine.lora.remove_adapter(1)
    for lora_int_id, loader in ((2, "direct"), (3, "device")):
        found = load(engine, request(engine, lora_int_id, digest, loader))
        assert differing(found, expected) == [], loader
        assert judge(engine, lora_int_id, digest) == "", loader
        engine.lora.remove_adapter(lora_int_id)
    assert engine.manager.lora_index_to_id == [None, None]


@pytest.mark.parametrize("loader", ["direct", "device"])
def test_ten_evictions_and_rebuilds_change_no_bit(engine: Any, loader: str) -> None:
    adapter = make(engine.folder, "rank 8 of 8, alpha over the root of the rank")
    digest = engine.arena.add(adapter)
    first = request(engine, 1, digest, loader)
    expected = load(engine, first)
    others = [stock(number, adapter) for number in (2, 3, 4)]
    for turn in range(1, 11):
        for other in others:  # max_cpu_loras is 3
            engine.lora.add_adapter(other)
        assert 1 not in engine.manager.list_adapters()
        assert differing(load(engine, first), expected) == []
        stats = engine.residency.stats
        assert (stats.loads, stats.rebuilds, stats.evictions) == (1, turn, turn)
    assert engine.residency.stats.offloads == (1 if loader == "device" else 0)


def test_a_load_that_fails_halfway_leaves_every_other_slot_and_id(engine: Any) -> None:
    first = make(engine.folder, "every linear module, rank below max_lora_rank")
    served = request(engine, 1, engine.arena.add(first))
    engine.lora.add_adapter(served)
    before = snapshot(engine.manager, slot_of(engine, 1))
    second = make(engine.folder, "scaling one", seed=2)
    digest = engine.arena.add(second)
    layer = engine.manager.modules["model.layers.1.self_attn.o_proj"]
    whole = layer.lora_b_stacked
    for loader in ("direct", "device"):
        layer.lora_b_stacked = (breaking(whole[0]),)
        with pytest.raises(Exception, match=r"adapter t/x2@\w{12}: .*the bus is on fire"):
            engine.lora.add_adapter(request(engine, 2, digest, loader))
        layer.lora_b_stacked = whole
        assert engine.lora.list_adapters() == {1}
        assert engine.manager.lora_index_to_id.count(None) == 1
        assert 2 not in engine.residency.known
        assert differing(snapshot(engine.manager, slot_of(engine, 1)), before) == []
        free = engine.manager.lora_index_to_id.index(None)
        whole_free = snapshot(engine.manager, free)
        assert not any(tensor.any() for tensor in whole_free.values())
    found = load(engine, request(engine, 3, digest))
    engine.lora.remove_adapter(3)
    assert differing(found, load(engine, stock(4, second))) == []


def breaking(tensor: Any) -> Any:
    """Return `tensor` as one that refuses to be copied into."""

    class Breaking(torch.Tensor):
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func in (torch.Tensor.copy_, torch._foreach_copy_):
                raise RuntimeError("the bus is on fire")
            return super().__torch_function__(func, types, args, kwargs or {})

    return tensor.as_subclass(Breaking)


WRONG: dict[str, tuple[str, tuple[int, int], str]] = {
    "an unknown layer": (
        "model.layers.2.self_attn.q_proj",
        (256, 256),
        "model.layers.2.self_attn.q_proj is not in the engine",
    ),
    "a narrower base": (
        "model.layers.0.self_attn.q_proj",
        (128, 256),
        r"lora_A has shape \[4, 128\], expected linear \[4, 256\]",
    ),
    "a wider base": (
        "model.layers.0.mlp.down_proj",
        (512, 320),
        r"lora_B has shape \[320, 4\], expected \[256, 4\]",
    ),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("loader", ["direct", "device"])
def test_what_does_not_fit_is_refused_before_anything_changes(
    engine: Any, name: str, loader: str
) -> None:
    module, size, message = WRONG[name]
    adapter = tiny_models.make_adapter(engine.folder / f"{name}", {module: size}, seed=3)
    digest = engine.arena.add(adapter)
    with pytest.raises(Exception, match=message):
        engine.lora.add_adapter(request(engine, 5, digest, loader))
    assert engine.lora.list_adapters() == set()
    assert engine.residency.stats.refused == 1
    assert engine.residency.known == {}


def test_a_rank_above_the_engines_is_refused_with_both_numbers(engine: Any) -> None:
    modules = {"model.layers.0.self_attn.q_proj": (256, 256)}
    adapter = tiny_models.make_adapter(engine.folder / "rank16", modules, seed=3, rank=16)
    with pytest.raises(Exception, match="LoRA rank 16 is greater than max_lora_rank 8"):
        engine.lora.add_adapter(request(engine, 5, engine.arena.add(adapter)))


def test_a_revision_that_is_not_staged_says_which_file_is_missing(engine: Any) -> None:
    with pytest.raises(
        Exception, match=r"revision.json does not exist: the revision is not staged"
    ):
        engine.lora.add_adapter(request(engine, 6, "sha256:" + "0" * 64))


def test_stock_adapters_take_vllms_own_path(engine: Any) -> None:
    from lorafleet_vllm.direct import ReadyModel

    adapter = make(engine.folder, "scaling one")
    assert engine.lora.add_adapter(stock(9, adapter))
    assert not isinstance(engine.manager.get_adapter(9), ReadyModel)
    stats = engine.residency.stats
    assert (stats.loads, stats.offloads, stats.activations) == (0, 0, 0)
    assert engine.lora.remove_adapter(9)
    assert not engine.lora.remove_adapter(9)


def test_a_stock_reload_in_place_cannot_take_an_id_of_ours(engine: Any) -> None:
    adapter = make(engine.folder, "scaling one")
    engine.lora.add_adapter(request(engine, 1, engine.arena.add(adapter)))
    before = snapshot(engine.manager, slot_of(engine, 1))
    foreign = stock(1, adapter)
    foreign.load_inplace = True
    with pytest.raises(Exception, match=r"id 1 is t/x1@\w{12}'s, which cannot be replaced"):
        engine.lora.add_adapter(foreign)
    assert differing(snapshot(engine.manager, slot_of(engine, 1)), before) == []


def test_a_worker_without_the_plugin_says_why(engine: Any) -> None:
    import json

    from lorafleet_vllm.worker_calls import lorafleet_profile, lorafleet_stats

    residency = engine.residency
    try:
        del engine.manager.lorafleet
        engine.manager.lorafleet_inactive = "AttributeError: moe_config"
        for call in (lorafleet_stats, lorafleet_profile):
            assert json.loads(call(engine.worker))["inactive"] == "AttributeError: moe_config"
    finally:
        engine.manager.lorafleet = residency


def test_a_load_outside_a_step_takes_no_slot_from_anyone(engine: Any) -> None:
    adapter = make(engine.folder, "scaling one")
    digest = engine.arena.add(adapter)
    for lora_int_id in (1, 2, 3):
        engine.lora.add_adapter(request(engine, lora_int_id, digest))
    assert engine.manager.lora_index_to_id == [1, 2]
    assert engine.residency.stats.slot_evictions == 0
    engine.lora.set_active_adapters({request(engine, 3, digest)}, None)
    assert engine.manager.lora_index_to_id == [3, 2]
    assert engine.residency.stats.slot_evictions == 1


def test_making_room_never_evicts_what_the_same_step_uses(engine: Any) -> None:
    adapter = make(engine.folder, "scaling one")
    digest = engine.arena.add(adapter)
    for lora_int_id in (1, 2, 3):
        engine.lora.add_adapter(request(engine, lora_int_id, digest))
    # 1 is the least recently used; the step needs it and 4, which is new.
    engine.lora.set_active_adapters({request(engine, n, digest) for n in (1, 4)}, None)
    assert engine.lora.list_adapters() == {1, 3, 4}
    assert engine.residency.stats.rebuilds == 0


def test_pinned_adapters_stay_and_one_place_is_left_for_others(engine: Any) -> None:
    adapter = make(engine.folder, "scaling one")
    digest = engine.arena.add(adapter)
    for lora_int_id in (1, 2, 3):
        engine.lora.add_adapter(request(engine, lora_int_id, digest))
    engine.residency.keep(1, "gpu")
    engine.residency.keep(2, "gpu")
    with pytest.raises(Exception, match="one place must stay for the others"):
        engine.residency.keep(3, "gpu")
    for lora_int_id in (4, 5, 6):
        engine.lora.set_active_adapters({request(engine, lora_int_id, digest)}, None)
    assert engine.lora.list_adapters() == {1, 2, 6}
    assert 1 in engine.manager.lora_index_to_id
    engine.residency.keep(1, "")
    engine.lora.add_adapter(request(engine, 7, digest))
    assert engine.lora.list_adapters() == {2, 6, 7}


def test_a_direct_adapter_is_views_of_the_arena_and_takes_no_memory(engine: Any) -> None:
    adapter = make(engine.folder, "every linear module, rank below max_lora_rank")
    engine.lora.add_adapter(request(engine, 1, engine.arena.add(adapter)))
    storages = {
        piece.source.untyped_storage().data_ptr()
        for layer in engine.manager.get_adapter(1).plan
        for fill in layer.fills
        for piece in fill.pieces
    }
    assert storages == {engine.residency.arena.current().view(0, (1,), torch.uint8).data_ptr()}
    report = engine.residency.report()
    assert report["pinned_host_bytes"] == 0
    assert report["host"] == [1]
    assert report["gpu"] == [1]


def test_device_host_copies_are_counted_once_and_freed_by_unload(engine: Any) -> None:
    adapter = make(engine.folder, "every linear module, rank below max_lora_rank")
    engine.lora.add_adapter(request(engine, 1, engine.arena.add(adapter), "device"))
    rows = sum(wide + out for wide, out in tiny_models.dense_modules().values())
    assert engine.residency.report()["pinned_host_bytes"] == rows * 4 * 2
    engine.lora.remove_adapter(1)
    assert engine.residency.report()["pinned_host_bytes"] == 0


def test_a_new_arena_file_is_mapped_and_old_views_stay_valid(engine: Any) -> None:
    adapter = make(engine.folder, "scaling one")
    digest = engine.arena.add(adapter)
    old = request(engine, 1, digest)
    before = load(engine, old)
    arena = engine.residency.volume.arena
    content = arena.read_bytes()
    arena.unlink()
    arena.write_bytes(content)
    assert differing(load(engine, request(engine, 2, digest)), before) == []
    assert differing(load(engine, old), before) == []


def test_the_manager_without_lru_is_wrapped_too(engine: Any) -> None:
    import copy

    from vllm.config import set_current_vllm_config
    from vllm.lora.worker_manager import WorkerLoRAManager
    from vllm.model_executor.model_loader import get_model

    config = copy.copy(engine.worker.vllm_config)
    config.compilation_config = copy.copy(config.compilation_config)
    config.compilation_config.static_forward_context = {}  # the first model's layers are in it
    with set_current_vllm_config(config):
        model = get_model(vllm_config=config)
        lora = WorkerLoRAManager(config, engine.lora.device, model.embedding_modules)
        lora.create_lora_manager(model, config)
    plain = type(engine)(engine.llm, engine.arena, engine.folder)
    manager = lora._adapter_manager
    adapter = make(plain.folder, "every linear module, rank below max_lora_rank")
    digest = engine.arena.add(adapter)
    for loader, lora_int_id in (("direct", 1), ("device", 2)):
        soil(manager, 0)
        assert lora.add_adapter(request(engine, lora_int_id, digest, loader))
        found = snapshot(manager, 0)
        lora.remove_adapter(lora_int_id)
        soil(manager, 0)
        lora.add_adapter(stock(9, adapter))
        assert differing(found, snapshot(manager, 0)) == []
        lora.remove_adapter(9)
    lora.set_active_adapters({request(engine, 3, digest)}, None)
    lora.set_active_adapters({request(engine, 4, digest)}, None)
    assert lora.list_adapters() == {4}
    assert manager.lorafleet.stats.evictions == 1


def test_the_profile_names_every_module_with_its_full_shape(engine: Any) -> None:
    from lorafleet.profile import EngineProfile
    from lorafleet_vllm.worker_calls import lorafleet_profile

    profile = EngineProfile.from_json(lorafleet_profile(engine.worker))
    shapes = {m.name: (m.in_features, m.out_features) for m in profile.modules}
    assert shapes == {**tiny_models.dense_modules(), **tiny_models.head_modules()}
    assert (profile.max_lora_rank, profile.max_loras, profile.max_cpu_loras) == (8, 2, 3)
    assert (profile.dtype, profile.vocab_size, profile.num_hidden_layers) == ("bfloat16", 512, 2)


# -- tensor parallelism: what each rank reads ----------------------------------------------------

COLUMNS, ROWS = ("self_attn.qkv_proj", "mlp.gate_up_proj"), ("self_attn.o_proj", "mlp.down_proj")


@pytest.mark.parametrize("fully", [False, True])
@pytest.mark.parametrize("wrapper", [*COLUMNS, *ROWS])
def test_each_rank_reads_only_its_slice(engine: Any, wrapper: str, fully: bool) -> None:
    from lorafleet_vllm.slot_plan import plan_slot

    name = f"model.layers.1.{wrapper}"
    pairs, layer = pairs_for(engine, name, rank=8), engine.manager.modules[name]
    ranks = [rank_of(layer, 2, rank, fully=fully) for rank in (0, 1)]
    read = [bytes_read(plan_slot({name: mine}, lambda _: pairs), pairs) for mine in ranks]
    a, b = (sum(getattr(pair, side).nbytes for pair in pairs) for side in "ab")
    # What vLLM has on every rank is read by every rank: A of columns, B of rows.
    twice = 0 if fully else a if wrapper in COLUMNS else b
    assert read[0] == read[1] == (a + b + twice) // 2


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("wrapper", "kind"),
    [
        ("self_attn.qkv_proj", "QKVParallelLinearWithLoRA"),
        ("mlp.gate_up_proj", "ColumnParallelLinearWithLoRA"),
    ],
)
def test_one_pair_for_a_merged_layer_is_cut_as_vllm_cuts_it_without_a_copy(
    engine: Any, wrapper: str, kind: str, rank: int
) -> None:
    import torch
    from lorafleet_vllm.slot_factors import Pair
    from lorafleet_vllm.slot_plan import plan_slot
    from lorafleet_vllm.slots import write_plan
    from vllm.lora import layers

    name = f"model.layers.1.{wrapper}"
    layer = rank_of(engine.manager.modules[name], 2, rank, cls=getattr(layers, kind))
    outs = sum(pair.b.shape[0] for pair in pairs_for(engine, name))
    a, b = torch.randn(6 * 256 + outs * 6).bfloat16().split([6 * 256, outs * 6])
    pairs = [Pair(name, a.view(6, 256), b.view(outs, 6), (1.7,))]
    plan = plan_slot({name: layer}, lambda _: pairs)
    assert bytes_read(plan, pairs) == a.nbytes + b.nbytes // 2
    for buffer in stacked(layer).values():
        buffer.fill_(7)
    write_plan(plan, 1)
    found = {key: buffer[1].clone() for key, buffer in stacked(layer).items()}
    layer.set_lora(1, pairs[0].a, pairs[0].b * 1.7)
    assert differing(found, {key: buffer[1] for key, buffer in stacked(layer).items()}) == []
