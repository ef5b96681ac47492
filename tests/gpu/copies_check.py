"""How bytes get from the arena into a slot, checked and timed on one GPU, without vLLM.

    PYTHONPATH=engine_sidecar:protos:tests:$PYTHONPATH python tests/gpu/copies_check.py [LAYERS]

One JSON line for each kind of copy: bits compared with plain torch on the CPU, what the profiler saw
of waiting and of pageable memory, the temporary peak, and the speed beside a plain copy of as many
bytes. Then widths of rows, a small adapter, and LAYERS (48) layers of Qwen3-30B-A3B at rank 64.
`LORAFLEET_CHECK_DEVICE=cpu` runs the same code where there is no GPU, and compares bits alone.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

import plain_slot
import torch
from copies_rig import CUDA, DEVICE, Memory, launches, say, seconds, slots
from lorafleet_vllm.copy2d import copy, pitched
from lorafleet_vllm.pieces import Fill, Piece
from lorafleet_vllm.slot_factors import factor_a, factor_b
from lorafleet_vllm.slots import (
    GROUP_BYTES,
    LayerFill,
    SlotPlan,
    grouped,
    write_layer,
    write_plan,
)
from lorafleet_vllm.writing import Blank, Writing

E, R, HIDDEN, MIDDLE = (128, 64, 2048, 768) if CUDA else (4, 16, 128, 64)
WAITS = ("Synchronize", "Pageable", "cudaMalloc", "cudaHostAlloc", "cudaHostRegister")
failures: list[str] = []


def check(fact: bool, what: str) -> None:
    if not fact:
        failures.append(what)
        say("FAILED", what=what)


def one(name: str, fills: list[Fill], **more: Any) -> None:
    """Check and time one layer of fills."""
    layer = LayerFill(tuple(fills))
    write_layer(layer, Writing(1, Blank()))
    equal = all(torch.equal(fill.slots[1].cpu(), plain_slot.plainly(fill)) for fill in fills)
    untouched = all(bool((fill.slots[0] == 7).all()) for fill in fills)
    check(equal and untouched, f"{name}: bits differ")
    figures: dict[str, Any] = {"equal": equal, "bytes": layer.nbytes, **more}
    if CUDA:
        figures.update(on_device(name, layer))
    say(name, **figures)


def on_device(name: str, layer: LayerFill) -> dict[str, Any]:
    stream = torch.cuda.Stream()

    def act() -> None:
        with torch.cuda.stream(stream):
            write_layer(layer, Writing(1, Blank()))

    act()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.set_sync_debug_mode("error")
    try:
        act()
    except RuntimeError as error:
        check(False, f"{name}: {error}")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    peak = torch.cuda.max_memory_allocated() - before
    check(peak <= layer.nbytes + (2 << 20), f"{name}: temporary {peak} of {layer.nbytes} bytes")
    check(torch.cuda.memory_allocated() == before, f"{name}: memory is kept")
    calls = launches(act)
    waits = [call for call in calls if any(wait in call for wait in WAITS)]
    check(not waits, f"{name}: {waits}")
    called, done = seconds(act)
    plain = plain_seconds(layer.nbytes)
    return {
        "temporary_peak_bytes": peak,
        "calls": calls,
        "seconds_call": called,
        "gigabytes_per_second": layer.nbytes / done / 1e9,
        "plain_gigabytes_per_second": layer.nbytes / plain / 1e9,
        "ratio": done / plain,
    }


def plain_seconds(nbytes: int) -> float:
    source = memory.map.view(0, (nbytes,), torch.uint8)
    target = torch.empty(nbytes, dtype=torch.uint8, device=DEVICE)
    return seconds(lambda: target.copy_(source, non_blocking=True))[1]


def kinds() -> None:
    take = memory.take
    one("contiguous", [factor_a("x", slots(E, R, HIDDEN), take(E, R, HIDDEN))])
    one("contiguous, scaled", [factor_b("x", slots(E, HIDDEN, R), take(E, HIDDEN, R), 0.3)])
    whole = take(E, R, MIDDLE)
    one(
        "2D source: columns of A",
        [factor_a("x", slots(E, R, MIDDLE // 2), whole[..., MIDDLE // 2 :])],
    )
    whole = take(R, 2 * HIDDEN)
    one("2D source: columns of a dense A", [factor_a("x", slots(1, R, HIDDEN), whole[:, HIDDEN:])])
    whole = take(E, MIDDLE, R)
    rows = slice(MIDDLE // 2, None)
    one("2D source: rows of B", [factor_b("x", slots(E, MIDDLE // 2, R), whole[:, rows], 3.0)])
    one(
        "2D target: A of half the rank",
        [factor_a("x", slots(E, R, HIDDEN), take(E, R // 2, HIDDEN))],
    )
    one("narrow target: B of a quarter of the rank",
        [factor_b("x", slots(E, HIDDEN, R), take(E, HIDDEN, R // 4), 0.7)])  # fmt: skip
    one("narrow both ways: columns of A of half the rank",
        [factor_a("x", slots(E, R, MIDDLE // 2), take(E, R // 2, MIDDLE)[..., : MIDDLE // 2])])  # fmt: skip
    one("narrow both ways: rows of B of half the rank",
        [factor_b("x", slots(E, MIDDLE // 2, R), take(E, MIDDLE, R // 2)[:, rows], 0.3)])  # fmt: skip
    vocabulary = 151936 if CUDA else 512
    embedding = take(R // 4, vocabulary)
    part = (slice(None), slice(R // 4))
    rest = (slice(None), slice(R // 4, None))
    one("transposed: A of an embedding",
        [Fill(slots(vocabulary, R), (Piece(part, embedding.mT),), (rest,))])  # fmt: skip
    even, odd = (slice(0, None, 2), slice(None)), (slice(1, None, 2), slice(None))
    pieces = tuple(Piece(region, take(E, MIDDLE, R), 0.3) for region in (even, odd))
    one("interleaved rows", [Fill(slots(E, 2 * MIDDLE, R), pieces, ())])
    scales = torch.linspace(0.1, 3, E).view(-1, 1, 1)
    scales = scales.pin_memory() if CUDA else scales
    one(
        "a scaling for each expert",
        [factor_b("x", slots(E, HIDDEN, R), take(E, HIDDEN, R), scales)],
    )
    one("one pair for all experts",
        [factor_a("x", slots(E, R, MIDDLE), take(1, R, MIDDLE).expand(E, -1, -1))])  # fmt: skip
    half = torch.float16
    source = take(E, HIDDEN, R).to(half)
    one("float16", [factor_b("x", slots(E, HIDDEN, R, dtype=half), pinned(source), 0.3)])
    source = torch.randn(E, HIDDEN, R)
    one("float32 into bfloat16", [factor_b("x", slots(E, HIDDEN, R), pinned(source), 0.3)])


def pinned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.pin_memory() if CUDA else tensor


def widths() -> None:
    """2D copies of 32 MiB in rows of some widths, every second row on the side that is pitched."""
    total = 32 << 20
    for width in (128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096):
        count = total // width
        wide = memory.map.view(0, (count, 2 * width), torch.uint8)
        dense = memory.map.view(0, (count, width), torch.uint8)
        target = torch.empty(count, 2 * width, dtype=torch.uint8, device=DEVICE)
        flat = torch.empty(count, width, dtype=torch.uint8, device=DEVICE)
        figures = {}
        for kind, to, come in (
            ("source", flat, wide[:, :width]),
            ("target", target[:, :width], dense),
            ("both", target[:, :width], wide[:, :width]),
        ):
            rows = pitched(to, come)
            assert rows is not None
            assert rows.width == width
            _, done = seconds(lambda to=to, come=come, rows=rows: copy(to, come, rows))  # type: ignore[misc]
            figures[kind] = count * width / done / 1e9
        mapped = as_device(wide)
        _, done = seconds(lambda: flat.copy_(mapped[:, :width]))  # noqa: B023
        figures["read by the device"] = count * width / done / 1e9
        say("2D, gigabytes per second", width=width, **figures)
    say("2D, gigabytes per second", width=total, contiguous=total / plain_seconds(total) / 1e9)


def as_device(view: torch.Tensor) -> torch.Tensor:
    """Return registered host memory as the device sees it."""

    class Host:
        __cuda_array_interface__ = {  # noqa: RUF012
            "shape": tuple(view.shape),
            "typestr": "|u1",
            "data": (view.data_ptr(), False),
            "version": 3,
        }

    return torch.as_tensor(Host(), device=DEVICE)


Tensors = list[list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]]]


def planned(tensors: Tensors, limit: int) -> list[LayerFill]:
    """Return the groups of layers given as (slots of A, slots of B, A, B)."""
    layers = []
    for pairs in tensors:
        fills: list[Fill] = []
        for slots_a, slots_b, a, b in pairs:
            fills += [factor_a("x", slots_a, a), factor_b("x", slots_b, b, 0.3)]
        layers.append(LayerFill(tuple(fills)))
    return list(grouped(layers, limit))


def whole(name: str, tensors: Tensors, limit: int) -> None:
    """Time a first load and a later one, against plain copies of the same tensors."""
    groups = planned(tensors, limit)
    write_plan(SlotPlan(groups), 1)
    fills = [fill for group in groups for fill in group.fills]
    nbytes = sum(group.nbytes for group in groups)
    if nbytes < 64 << 20:
        equal = all(torch.equal(fill.slots[1].cpu(), plain_slot.plainly(fill)) for fill in fills)
        check(equal, f"{name}: bits differ")
    plain = [
        (fill.slots[..., piece.region[0], piece.region[1]], piece.source)
        for fill in fills
        for piece in fill.pieces
    ]

    def plainly() -> None:
        for target, source in plain:
            target[1].copy_(source, non_blocking=True)

    def again() -> None:
        write_plan(SlotPlan(groups), 1)

    def first() -> None:
        write_plan(SlotPlan(planned(tensors, limit)), 1)

    gc.collect()
    gc.freeze()  # as vLLM does at start-up
    plainly()
    plans, _ = seconds(lambda: planned(tensors, limit), 15)
    call, done = seconds(again, 15)
    _, first_done = seconds(first, 15)
    plain_call, plain_done = seconds(plainly, 15)
    figures: dict[str, Any] = {"bytes": nbytes, "tensors": len(plain), "groups": len(groups)}
    figures |= {"seconds_plan": plans, "seconds_call": call, "seconds_done": done}
    figures |= {"plain_seconds_call": plain_call, "plain_seconds_done": plain_done}
    figures |= {"ratio": done / plain_done, "ratio_first": first_done / plain_done}
    if CUDA:
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        again()
        torch.cuda.synchronize()
        figures["temporary_peak_bytes"] = torch.cuda.max_memory_allocated() - before
        check(torch.cuda.memory_allocated() == before, f"{name}: memory is kept")
        calls = launches(again)
        waits = [call for call in calls if any(wait in call for wait in WAITS)]
        check(not waits, f"{name}: {waits}")
        figures["calls"] = calls
    say(name, **figures)


def small(rank: int, limit: int, layers: int = 32, hidden: int = 960, middle: int = 2560) -> None:
    """An adapter of a few MiB, all linear modules."""
    memory._next = 0
    tensors: Tensors = []
    for _ in range(layers):
        for outs, wide in (
            ((hidden, 320, 320), hidden),
            ((hidden,), hidden),
            ((middle, middle), hidden),
            ((hidden,), middle),
        ):
            tensors.append(
                [
                    (
                        slots(1, limit, wide),
                        slots(1, out, limit),
                        memory.take(rank, wide),
                        memory.take(out, rank),
                    )
                    for out in outs
                ]
            )
    layer = [a[0].nbytes + b[0].nbytes for pairs in tensors[:4] for a, b, _, _ in pairs]
    whole(f"small, rank {rank} of {limit}", tensors, sum(layer))


def large(layers: int) -> None:
    """All of an adapter of 6.29 GiB."""
    memory._next = 0
    tensors: Tensors = []
    for _ in range(layers):
        for shape, count in (
            (((HIDDEN, 4096), (HIDDEN, 512), (HIDDEN, 512)), 1),
            (((4096, HIDDEN),), 1),
            (((HIDDEN, MIDDLE), (HIDDEN, MIDDLE), (MIDDLE, HIDDEN)), E),
        ):
            own = (count,) if count > 1 else ()
            tensors.append(
                [
                    (
                        slots(count, R, wide),
                        slots(count, out, R),
                        memory.take(*own, R, wide),
                        memory.take(*own, out, R),
                    )
                    for wide, out in shape
                ]
            )
    whole(f"{layers} layers", tensors, GROUP_BYTES)


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 48 if CUDA else 2
    layer_bytes = 2 * R * (3 * E * (HIDDEN + MIDDLE) + 2 * HIDDEN + 2 * (HIDDEN + 512) + 2 * 4096 + 2 * HIDDEN)  # fmt: skip
    memory = Memory(max((count + 1) * layer_bytes, 96 << 20))
    try:
        kinds()
        small(8, 8)
        small(8, 32)
        if CUDA:
            widths()
        large(count)
    finally:
        memory.close()
    say("end", failures=failures)
    sys.exit(bool(failures))
