"""The source paper's checks of the `device` loader, and equal slots of all loaders, on one GPU.

Each check is a function of a `Probe` that returns the figures it measured and asserts the rest.
Run them all, one JSON line each:

    PYTHONPATH=engine_sidecar:protos:tests:$PYTHONPATH python tests/paper_checks.py

Works with vLLM 0.26 to 0.33, without pytest, transformers' models or a tokenizer.
`LORAFLEET_CHECK_DEVICE=cpu` runs the same code where there is no GPU; it then proves less.
"""

from __future__ import annotations

import copy
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from paper_probe import Probe, start
from plugin_requests import load_for_step, ours, stock
from slot_probe import differing

if TYPE_CHECKING:
    from collections.abc import Callable

Figures = dict[str, Any]


def the_arena_is_registered_once_at_start(probe: Probe) -> Figures:
    """The worker has mapped the arena, and on a GPU the driver has all of it."""
    size = probe.residency.volume.arena.stat().st_size
    registered = probe.residency.arena.registered_bytes
    view = probe.residency.arena.current().view(0, (1,), torch.uint8)
    if probe.cuda:
        assert registered == size
        assert view.is_pinned()
    return {"arena_bytes": size, "registered_bytes": registered}


def slots_are_equal_for_direct_device_and_stock(probe: Probe) -> Figures:
    """Same bits in every buffer, for a rank below the slot's, one equal to it, one pattern."""
    cases: dict[str, dict[str, Any]] = {
        "below": {"rank": 4, "alpha": 16},
        "equal": {"rank": 16, "alpha": 24},
        "scaling-one": {"rank": 8, "alpha": 8},
    }
    for name, options in cases.items():
        folder, digest = probe.adapter(name, **options)
        expected = load_for_step(probe.lora, stock(1, folder))
        probe.lora.remove_adapter(1)
        for lora_int_id, loader in ((2, "direct"), (3, "device")):
            request = ours(probe.arena.volume, lora_int_id, digest, loader)
            found = load_for_step(probe.lora, request)
            assert differing(found, expected) == [], (name, loader)
            probe.lora.remove_adapter(lora_int_id)
    return {"cases": len(cases), "buffers": len(expected)}


def experts_with_scalings_of_their_own_are_scaled_alike(probe: Probe) -> Figures:
    """`direct` multiplies by a tensor, `device` too: the bits agree with a loop over experts."""
    patterns = {r".*\.experts\.3\.down_proj": 7, r".*\.experts\.5\.gate_proj": 3}
    _, digest = probe.adapter("own-scalings", rank=4, alpha=16, alpha_pattern=patterns)
    requests = [
        ours(probe.arena.volume, n, digest, loader) for n, loader in ((1, "direct"), (2, "device"))
    ]
    direct, device = (load_for_step(probe.lora, request) for request in requests)
    assert differing(direct, device) == []
    arena, revision = probe.residency.arena.current(), probe.residency.known[1].revision
    tensors = next(m for m in revision.modules if m.name.endswith("0.mlp.experts.down_proj"))
    raw = arena.view(revision.data_offset + tensors.b.offset, tensors.b.shape, torch.bfloat16)
    loop = torch.stack([b * s for b, s in zip(raw, tensors.scaling, strict=True)])
    slot = direct["model.layers.0.mlp.experts/w2_lora_b_stacked.0"]
    assert torch.equal(slot[..., :4], loop)
    return {"scalings": sorted(set(tensors.scaling))}


def a_device_adapter_is_offloaded_once_and_gives_its_memory_back(probe: Probe) -> Figures:
    """Everything registered lies in pinned host memory; GPU memory is what it was before."""
    _, digest = probe.adapter("offloaded", rank=16, alpha=32)
    before = probe.allocated()
    request = ours(probe.arena.volume, 1, digest, "device")
    load_for_step(probe.lora, request)
    for _ in range(3):
        probe.lora.set_active_adapters({request}, None)
        probe.lora.add_adapter(request)
    assert probe.residency.stats.offloads == 1
    assert probe.allocated() == before
    tensors = registered(probe, 1)
    assert all(tensor.device.type == "cpu" for tensor in tensors)
    if probe.cuda:
        assert all(tensor.is_pinned() for tensor in tensors)
    return {
        "tensors": len(tensors),
        "pinned_host_bytes": probe.residency.report()["pinned_host_bytes"],
        "temporary_peak_bytes": probe.residency.stats.temporary_peak_bytes,
        "temporary_kept_bytes": probe.residency.stats.temporary_kept_bytes,
    }


def direct_takes_no_gpu_memory_beyond_one_layer(probe: Probe) -> Figures:
    """Nothing stays, and the peak is at most what one layer takes of a slot."""
    from lorafleet_vllm.slot_plan import largest_layer

    _, digest = probe.adapter("direct-memory", rank=4, alpha=16)
    before = probe.allocated()
    probe.lora.set_active_adapters({ours(probe.arena.volume, 1, digest)}, None)
    stats = probe.residency.stats
    layer = largest_layer(probe.manager.modules)
    assert probe.allocated() == before
    assert stats.temporary_kept_bytes == 0
    assert stats.temporary_peak_bytes <= layer
    return {"temporary_peak_bytes": stats.temporary_peak_bytes, "one_layer_bytes": layer}


def disk_adapters_are_not_offloaded(probe: Probe) -> Figures:
    """A stock adapter is vLLM's: no copy of ours, no counter moves."""
    from lorafleet_vllm.direct import ReadyModel

    folder, _ = probe.adapter("on-disk", rank=4)
    load_for_step(probe.lora, stock(1, folder))
    assert not isinstance(probe.manager.get_adapter(1), ReadyModel)
    assert probe.residency.stats.offloads == 0
    assert probe.residency.store.nbytes == 0
    assert probe.residency.report()["pinned_host_bytes"] == 0
    return {}


def both_managers_are_wrapped(probe: Probe) -> Figures:
    """The manager without LRU loads, offloads and fills slots just so."""
    from vllm.config import set_current_vllm_config
    from vllm.lora.worker_manager import LRUCacheWorkerLoRAManager, WorkerLoRAManager
    from vllm.model_executor.model_loader import get_model

    for cls in (WorkerLoRAManager, LRUCacheWorkerLoRAManager):
        assert hasattr(vars(cls)["add_adapter"], "__lorafleet__")
    config = copy.copy(probe.worker.vllm_config)
    config.compilation_config = copy.copy(config.compilation_config)
    config.compilation_config.static_forward_context = {}  # the first model's layers are in it
    with set_current_vllm_config(config):
        model = get_model(vllm_config=config)
        lora = WorkerLoRAManager(config, probe.lora.device, model.embedding_modules)
        lora.create_lora_manager(model, config)
    folder, digest = probe.adapter("plain-manager", rank=8, alpha=4)
    expected = load_for_step(lora, stock(1, folder))
    for lora_int_id, loader in ((2, "direct"), (3, "device")):
        request = ours(probe.arena.volume, lora_int_id, digest, loader)
        assert differing(load_for_step(lora, request), expected) == [], loader
    stats = lora._adapter_manager.lorafleet.stats
    assert (stats.loads, stats.offloads, stats.evictions) == (2, 1, 1)
    return {"loads": stats.loads, "offloads": stats.offloads}


def a_rebuild_stays_on_the_host_and_keeps_aliases(probe: Probe) -> Figures:
    """Tensors that share storage share one host copy, before and after a rebuild."""
    from lorafleet.profile import ModuleKind
    from lorafleet_vllm.device_loader import DeviceModule

    device = probe.residency.device
    shared = torch.randn(8, 256, device=device).bfloat16()
    sizes = {"q_proj": 256, "k_proj": 128, "v_proj": 128}
    staged = [
        DeviceModule(
            f"model.layers.0.self_attn.{name}",
            ModuleKind.LINEAR,
            shared,
            torch.randn(out, 8, device=device).bfloat16(),
            (1.0,),
        )
        for name, out in sizes.items()
    ]
    request = ours(probe.arena.volume, 1, "sha256:" + "a" * 64, "device")
    probe.residency.add(request, staged)
    expected = load_for_step(probe.lora, request)
    packed = probe.manager.get_adapter(1).loras["model.layers.0.self_attn.qkv_proj"]
    first = [tensor.data_ptr() for tensor in packed.lora_a]
    assert len(set(first)) == 1
    unique = 8 * 256 + 8 * sum(sizes.values())
    assert probe.residency.store.nbytes == unique * 2
    before = probe.allocated()
    for turn in range(1, 11):
        probe.manager.remove_adapter(1)  # what LRU does: the id stays known
        assert differing(load_for_step(probe.lora, request), expected) == []
        again = probe.manager.get_adapter(1).loras["model.layers.0.self_attn.qkv_proj"]
        assert [tensor.data_ptr() for tensor in again.lora_a] == first
        assert probe.residency.stats.rebuilds == turn
    assert probe.allocated() == before
    assert probe.residency.stats.offloads == 1
    return {"rebuilds": 10, "host_bytes": probe.residency.store.nbytes}


def views_with_other_strides_get_copies_of_their_own(probe: Probe) -> Figures:
    """Equal views share a host copy; others have their own, with shape, strides and values."""
    from lorafleet_vllm.offload import offload

    base = torch.arange(64, dtype=torch.bfloat16, device=probe.residency.device).view(8, 8)
    views = {
        "base": base,
        "same": base.view(8, 8),
        "transposed": base.T,
        "every second": base[:, ::2],
        "later rows": base[4:],
        "repeated": base[:1].expand(8, 8),
    }
    wanted = {name: (view.cpu().clone(), view.stride()) for name, view in views.items()}
    empty = type("Empty", (), {"loras": {}})()
    moved = offload(empty, views, probe.residency.device)
    for name, (values, stride) in wanted.items():
        assert views[name].device.type == "cpu"
        assert views[name].stride() == stride, name
        assert torch.equal(views[name], values), name
        assert not probe.cuda or views[name].is_pinned(), name
    pointers = {name: view.data_ptr() for name, view in views.items()}
    assert pointers["base"] == pointers["same"]
    assert len(set(pointers.values())) == 5
    assert offload(empty, views, probe.residency.device) == 0
    return {"host_bytes": moved, "copies": 5}


def staged_source_tensors_are_moved_too(probe: Probe) -> Figures:
    """Tensors born on the GPU leave it with the adapter, unscaled, and go when it is unloaded."""
    from lorafleet.profile import ModuleKind
    from lorafleet_vllm.device_loader import DeviceModule

    device = probe.residency.device
    before = probe.allocated()
    a = torch.randn(8, 256, device=device).bfloat16()
    b = torch.randn(256, 8, device=device).bfloat16()
    values = a.cpu().clone(), b.cpu().clone()
    name = "model.layers.0.self_attn.o_proj"
    request = ours(probe.arena.volume, 1, "sha256:" + "b" * 64, "device")
    probe.residency.add(request, [DeviceModule(name, ModuleKind.LINEAR, a, b, (4.0,))])
    del a, b
    source = probe.residency.store.get(1).source
    kept = source[f"{name}.a"], source[f"{name}.b"]
    assert torch.equal(kept[0], values[0])
    assert torch.equal(kept[1], values[1])
    assert not probe.cuda or (kept[0].is_pinned() and kept[1].is_pinned())
    assert probe.allocated() == before
    probe.lora.remove_adapter(1)
    assert probe.residency.store.nbytes == 0
    return {"source_bytes": sum(tensor.nbytes for tensor in kept)}


def registered(probe: Probe, lora_int_id: int) -> list[torch.Tensor]:
    """Return the tensors of a registered adapter."""
    from lorafleet_vllm.tensor_tree import model_tensors

    return list(model_tensors(probe.manager.get_adapter(lora_int_id)))


CHECKS: tuple[Callable[[Probe], Figures], ...] = (
    the_arena_is_registered_once_at_start,
    slots_are_equal_for_direct_device_and_stock,
    experts_with_scalings_of_their_own_are_scaled_alike,
    a_device_adapter_is_offloaded_once_and_gives_its_memory_back,
    direct_takes_no_gpu_memory_beyond_one_layer,
    disk_adapters_are_not_offloaded,
    both_managers_are_wrapped,
    a_rebuild_stays_on_the_host_and_keeps_aliases,
    views_with_other_strides_get_copies_of_their_own,
    staged_source_tensors_are_moved_too,
)


def required_device() -> str:
    """Return "cuda" unless the caller asked for a dry run."""
    return os.environ.get("LORAFLEET_CHECK_DEVICE", "cuda")


def main() -> int:
    """Run every check; print one JSON line each; return how many failed."""
    folder = Path(tempfile.mkdtemp(prefix="lorafleet-checks-", dir="/dev/shm"))
    probe = start(folder)
    assert probe.residency.device.type == required_device()
    import vllm

    print(json.dumps({"vllm": vllm.__version__, "torch": torch.__version__}), flush=True)
    failed = 0
    for check in CHECKS:
        probe.clear()
        try:
            line: Figures = {"check": check.__name__, "ok": True, **check(probe)}
        except Exception as error:
            failed += 1
            text = f"{type(error).__name__}: {error}"
            line = {"check": check.__name__, "ok": False, "error": text}
        print(json.dumps(line), flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
