"""load.py where nothing else runs: seconds, GPU memory, host memory, and the bits in the slots."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import accelerator
import device_memory
import gaps
import host_memory
import inprocess
from one_gpu import BIG, DEVICE, STOCK, TENANT
from tracing import traced

if TYPE_CHECKING:
    from one_gpu import Bench

TIMES = 5


def host_memory_of_a_load(bench: Bench) -> None:
    """Compare the host memory of pod and process before and after the very first load."""
    staged, volume = bench.staging.staged["big"], bench.staging.volume
    before, free = host_memory.of_process(), host_memory.available()
    inprocess.load_seconds(bench.probe, bench.ours(BIG))
    after = host_memory.of_process()
    arena = sum(each["Rss"] for name, each in after.items() if name.startswith(str(volume)))
    report = bench.probe.residency.report()
    private = host_memory.private(after, but=volume) - host_memory.private(before, but=volume)
    pinned = report["pinned_host_bytes"]
    total = staged.extent_bytes + max(private, 0) + pinned
    bench.record.put(
        adapter_bytes=staged.data_bytes,
        layer_bytes=bench.shape.layer_bytes,
        arena_bytes=bench.staging.size,
        arena_resident_bytes=arena,
        registered_bytes=report["registered_host_bytes"],
        slot_bytes=report["slot_bytes"],
        host_private_growth_bytes=private,
        host_pinned_bytes=pinned,
        host_available_shrank_bytes=free - host_memory.available(),
        host_bytes_ratio=total / staged.data_bytes,
        host_status=host_memory.status(),
    )
    inprocess.clear(bench.probe)


def direct_when_idle(bench: Bench) -> None:
    """Time loads, rebuilds and plain copies of the same bytes by turns."""
    request, probe = bench.ours(BIG), bench.probe
    copies, loads, rebuilds = [], [], []
    room = accelerator.room_for(bench.arena_data())
    for _ in range(TIMES):
        copies.append(accelerator.copy_seconds(bench.arena_data(), room))
        loads.append(inprocess.load_seconds(probe, request))
        inprocess.evict(probe, BIG)
        rebuilds.append(inprocess.load_seconds(probe, request))
        inprocess.clear(probe)
    del room
    with device_memory.peak() as load:
        inprocess.load_seconds(probe, request)
    inprocess.evict(probe, BIG)
    with device_memory.peak() as rebuild:
        inprocess.load_seconds(probe, request)
    phases = dict(probe.residency.stats.seconds)
    inprocess.clear(probe)
    table = bench.record.path.with_name("load-profile.txt")
    profile = traced(lambda: inprocess.load_seconds(probe, request), table)
    inprocess.clear(probe)
    copy = gaps.median(copies)
    bench.record.put(
        copy_s=copy,
        copy_gigabytes_per_second=bench.arena_data().numel() / copy / 1e9,
        direct_s=gaps.median(loads),
        direct_rebuild_s=gaps.median(rebuilds),
        copy_all_s=copies,
        direct_all_s=loads,
        direct_rebuild_all_s=rebuilds,
        temp_peak_bytes=max(load.torch_bytes, rebuild.torch_bytes),
        temp_peak_driver_bytes=max(load.driver_bytes, rebuild.driver_bytes),
        temp_kept_bytes=max(load.kept_bytes, rebuild.kept_bytes),
        direct_phases_s=phases,
        direct_profile=profile,
    )


def small_when_idle(bench: Bench) -> None:
    """Time fills of an adapter of a few MiB beside plain copies of its tensors, one by one."""
    request, probe = bench.ours(TENANT), bench.probe
    inprocess.load_seconds(probe, request)
    loads, copies, whole = [], [], []
    room = accelerator.room_for(bench.arena_data("tenant"))
    for _ in range(20):
        inprocess.evict(probe, TENANT)
        accelerator.synchronize()
        begin = time.perf_counter()
        probe.lora.add_adapter(request)
        accelerator.synchronize()
        loads.append(time.perf_counter() - begin)
        copies.append(accelerator.copies_seconds(bench.arena_tensors("tenant")))
        whole.append(accelerator.copy_seconds(bench.arena_data("tenant"), room))
    inprocess.clear(probe)
    bench.record.put(
        small_bytes=bench.arena_data("tenant").numel(),
        small_tensors=len(bench.arena_tensors("tenant")),
        small_fill_s=gaps.median(loads),
        small_copies_s=gaps.median(copies),
        small_copy_in_one_go_s=gaps.median(whole),
    )


def device_when_idle(bench: Bench) -> None:
    """Time `device`: build, activate, offload; and again from its offloaded tensors."""
    request, probe = bench.ours(DEVICE, "device"), bench.probe
    with device_memory.peak(driver=False) as load:
        first = inprocess.load_seconds(probe, request)
    again = []
    for _ in range(3):
        inprocess.evict(probe, DEVICE)
        again.append(inprocess.load_seconds(probe, request))
    bench.record.put(
        device_s=first,
        device_rebuild_s=gaps.median(again),
        device_temp_peak_bytes=load.torch_bytes,
        device_temp_kept_bytes=load.kept_bytes,
        device_pinned_bytes=probe.residency.report()["pinned_host_bytes"],
        device_pinned_by_torch_bytes=accelerator.pinned(),
    )
    inprocess.clear(probe)


def compare_slots(bench: Bench) -> None:
    """Compare the stock adapter's slot with `direct`'s and `device`'s, bit by bit."""
    probe, differing = bench.probe, {}
    for lora_int_id, loader in ((BIG, "direct"), (DEVICE, "device")):
        for other in list(probe.residency.known):
            bench.engine.remove_lora(other)
        inprocess.soil(probe)
        inprocess.load_seconds(probe, bench.ours(lora_int_id, loader))
        differing[loader] = inprocess.differing_slots(probe, STOCK, lora_int_id)
    bench.record.put(
        slots_equal=not any(differing.values()),
        slots_differing={loader: names[:8] for loader, names in differing.items()},
    )
