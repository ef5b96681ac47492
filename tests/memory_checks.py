"""The worker's memory figures beside torch's and the kernel's own, within one percent.

Each check is a function of an engine in this process (`paper_probe.Probe`, or a test's) and a folder with
a PEFT adapter for it; it returns what it compared. Run them all on a GPU, one JSON line each:

    PYTHONPATH=engine_sidecar:protos:tests:$PYTHONPATH python tests/memory_checks.py
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import device_memory
import host_memory
import torch
from plugin_requests import ours
from slot_probe import stacked

if TYPE_CHECKING:
    from collections.abc import Callable

Figures = dict[str, Any]
SHARE = 0.01


def agree(told: int, found: int) -> None:
    """Assert that a figure of the worker is what was found, within one percent."""
    assert abs(told - found) <= SHARE * found, f"the worker says {told}, found {found}"


def load(engine: Any, lora_int_id: int, adapter: Path, loader: str) -> str:
    """Stage an adapter and load it as the control socket does, part by part."""
    from lorafleet_vllm.worker_calls import lorafleet_begin, lorafleet_progress

    digest = engine.arena.add(adapter)
    request = ours(engine.arena.volume, lora_int_id, digest, loader)
    text = lorafleet_begin(engine.worker, lora_int_id, request.lora_name, request.lora_path)
    while not (answer := json.loads(text))["done"]:
        text = lorafleet_progress(engine.worker, lora_int_id)
    assert answer["error"] == ""
    return digest


def slot_bytes_are_those_of_vllms_buffers(engine: Any, adapter: Path) -> Figures:
    """Every buffer whose first dimension is the slot, counted over vLLM's own layers."""
    told = engine.residency.report()["slot_bytes"]
    layers = engine.manager.modules.values()
    found = sum(t.nbytes for layer in layers for t in stacked(layer).values())
    assert found > 0
    agree(told, found)
    return {"told": told, "found": found}


def weights_and_kv_cache_are_vllms(engine: Any, adapter: Path) -> Figures:
    """The model's own tensors as its modules hold them, and the caches that vLLM's plan names."""
    from lorafleet_vllm.worker_calls import lorafleet_stats

    told = json.loads(lorafleet_stats(engine.worker))
    runner = engine.worker.model_runner
    planned = sum(each.size for each in runner.kv_cache_config.kv_cache_tensors)
    assert planned > 0
    agree(told["kv_cache_bytes"], planned)
    held = {
        tensor.data_ptr(): tensor.nbytes
        for module in runner.get_model().modules()
        for tensor in (*module._parameters.values(), *module._buffers.values())
        if tensor is not None
    }
    agree(told["weights_bytes"], sum(held.values()))
    if torch.cuda.is_available():
        parts = sum(told[f"{part}_bytes"] for part in ("weights", "kv_cache", "slot"))
        assert parts <= torch.cuda.memory_allocated()
    return {"weights": told["weights_bytes"], "kv_cache": told["kv_cache_bytes"]}


def allocated_and_reserved_bytes_are_torchs(engine: Any, adapter: Path) -> Figures:
    """What torch says of the device, and the kernel of the process."""
    told = engine.residency.report()
    if torch.cuda.is_available():
        agree(told["torch_allocated_bytes"], torch.cuda.memory_allocated())
        agree(told["torch_reserved_bytes"], torch.cuda.memory_reserved())
    else:
        assert told["torch_allocated_bytes"] == told["torch_reserved_bytes"] == 0
    resident = host_memory.status()["VmRSS"]
    agree(told["resident_host_bytes"], resident)
    return {"resident": resident, "told": told["resident_host_bytes"]}


def the_temporary_peak_is_torchs(engine: Any, adapter: Path) -> Figures:
    """Of each loader's last load, though it was done in parts."""
    found = {}
    for lora_int_id, loader in ((1, "direct"), (2, "device")):
        with device_memory.peak(driver=False) as peak:
            load(engine, lora_int_id, adapter, loader)
        told = engine.residency.report()
        agree(told["temporary_peak_bytes"], peak.torch_bytes)
        agree(told["temporary_kept_bytes"], peak.kept_bytes)
        assert peak.kept_bytes == 0
        found[loader] = peak.torch_bytes
    return found


def registered_bytes_are_resident_pages_of_the_arena(engine: Any, adapter: Path) -> Figures:
    """What CUDA has registered is mapped, page by page, and belongs to nobody else."""
    load(engine, 1, adapter, "direct")
    told = engine.residency.report()["registered_host_bytes"]
    file = engine.residency.volume.arena
    arena = host_memory.of_process()[str(file)]
    assert told == (file.stat().st_size if torch.cuda.is_available() else 0)
    if told:
        agree(told, arena["Rss"])
    assert arena["Rss"] > 0
    assert arena["Anonymous"] == 0  # not one page was copied
    return {"told": told, "resident": arena["Rss"], "status": host_memory.status()}


def pinned_bytes_are_those_of_the_pinning_allocator(engine: Any, adapter: Path) -> Figures:
    """What `device` keeps on the host, rounding of the allocator and all; `direct` keeps nothing."""
    cuda = torch.cuda.is_available()

    def pinned() -> int:
        if not cuda:
            return 0
        torch._C._host_emptyCache()
        return int(torch.cuda.host_memory_stats()["allocated_bytes.current"])

    before, maps = pinned(), host_memory.of_process()
    load(engine, 1, adapter, "direct")
    assert engine.residency.report()["pinned_host_bytes"] == 0
    assert pinned() == before
    load(engine, 2, adapter, "device")
    told, found = engine.residency.report()["pinned_host_bytes"], pinned() - before
    assert told > 0
    if cuda:
        agree(told, found)
    return {
        "told": told,
        "found": found,
        "grown_mappings": host_memory.grown(maps, host_memory.of_process(), least=4096),
    }


CHECKS: tuple[Callable[[Any, Path], Figures], ...] = (
    slot_bytes_are_those_of_vllms_buffers,
    weights_and_kv_cache_are_vllms,
    allocated_and_reserved_bytes_are_torchs,
    the_temporary_peak_is_torchs,
    registered_bytes_are_resident_pages_of_the_arena,
    pinned_bytes_are_those_of_the_pinning_allocator,
)


def main() -> int:
    """Run every check; print one JSON line each; return how many failed."""
    import paper_probe

    probe = paper_probe.start(Path(tempfile.mkdtemp(prefix="lorafleet-checks-", dir="/dev/shm")))
    adapter, _ = probe.adapter("adapter", rank=16, alpha=32)
    failed = 0
    for check in CHECKS:
        probe.clear()
        try:
            line: Figures = {"check": check.__name__, "ok": True, **check(probe, adapter)}
        except Exception as error:
            failed += 1
            text = f"{type(error).__name__}: {error}"
            line = {"check": check.__name__, "ok": False, "error": text}
        print(json.dumps(line), flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
