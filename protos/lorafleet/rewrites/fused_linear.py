"""qkv_proj and gate_up_proj: one A for all, B's rows one module after the other.

A is repeated; each module gets its rows of B. The sizes come from the engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lorafleet.errors import InvalidAdapter
from lorafleet.quoting import shown

if TYPE_CHECKING:
    from lorafleet.factors import Window
    from lorafleet.profile import LoraModule


def row_ranges(
    name: str, b: Window, targets: tuple[LoraModule, ...]
) -> list[tuple[LoraModule, int, int]]:
    """Return (module, first row, rows) of each target in `b`.

    Unknown sizes (0) share the rows evenly. Raises InvalidAdapter when they do not fit.
    """
    sizes = [target.out_features for target in targets]
    if not any(sizes) and b.rows % len(targets) == 0:
        sizes = [b.rows // len(targets)] * len(targets)
    if sum(sizes) != b.rows:
        parts = " + ".join(f"{last(t.name)} {size}" for t, size in zip(targets, sizes, strict=True))
        raise InvalidAdapter(
            f"{shown(name)}: lora_B has {b.rows} rows, expected {sum(sizes)} ({parts})"
        )
    ranges, first = [], 0
    for target, size in zip(targets, sizes, strict=True):
        ranges.append((target, first, size))
        first += size
    return ranges


def last(name: str) -> str:
    """Return a module name's last segment."""
    return name[name.rfind(".") + 1 :]
