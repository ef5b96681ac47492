"""Takes a crate apart by the kernel and says what differs from plain torch, in a process of its own.

`TRITON_INTERPRET=1` has to be set before Triton is imported: its interpreter then runs the kernel on
the CPU. It cuts bfloat16 off where a GPU rounds, so the values here are float16.
"""

from __future__ import annotations

import torch
from lorafleet_vllm import crate_kernel
from lorafleet_vllm.crate import Small
from lorafleet_vllm.spot import Spot, spot_of

ALL = slice(None)


def small(slots: torch.Tensor, rows: slice, columns: slice, scale: float) -> Small:
    """Return a piece for that part of every slot, with values of its own."""
    spot = spot_of(slots, (rows, columns))
    return Small(spot, torch.randn(spot.shape, dtype=slots.dtype), scale)


def main() -> None:
    """Fill slot 1 of three kinds of buffers; print what is wrong."""
    wide, tall, experts = (
        torch.full(shape, 7.0, dtype=torch.float16)
        for shape in ((3, 1, 16, 40), (3, 1, 40, 16), (3, 4, 16, 8))
    )
    a = small(wide, slice(8), ALL, 1.0)
    b = small(tall, ALL, slice(8), 2.5)
    e = small(experts, slice(0, 12), ALL, 0.3)
    zeros: list[Spot] = [
        spot_of(wide, (slice(8, None), ALL)),
        spot_of(tall, (ALL, slice(8, None))),
        spot_of(experts, (slice(12, None), ALL)),
    ]
    items = [a, b, e]
    table = crate_kernel.Table(items, zeros)
    crate = torch.cat([item.source.flatten() for item in items])
    crate_kernel.unpack(crate, table.words, 1)
    facts = {
        "a": torch.equal(wide[1, 0, :8], a.source) and not wide[1, 0, 8:].any(),
        "b": torch.equal(tall[1, 0, :, :8], b.source * 2.5) and not tall[1, 0, :, 8:].any(),
        "experts": torch.equal(experts[1, :, :12], e.source * 0.3) and not experts[1, :, 12:].any(),
        "other slots": all(bool((s[[0, 2]] == 7).all()) for s in (wide, tall, experts)),
    }
    print([name for name, right in facts.items() if not right])


if __name__ == "__main__":
    main()
