"""Experts as tensors of three dimensions, one factor shared by all experts included.

A is [experts, rank, in] and B [experts, out, rank]; either may have its last two dimensions
exchanged, and a first dimension of 1 (or none) means that all experts share the factor.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from lorafleet.errors import InvalidAdapter
from lorafleet.factors import Window
from lorafleet.quoting import shown

if TYPE_CHECKING:
    from lorafleet.factors import Pair
    from lorafleet.header import TensorEntry
    from lorafleet.profile import LoraModule

MAX_UNKNOWN_EXPERTS = 4096
"""Bound on what a name or shape may promise when the engine's modules are unknown."""


def unstack(
    pair: Pair, targets: tuple[LoraModule, ...], rank: int
) -> tuple[list[tuple[Window, Window]], bool]:
    """Return (A, B) of each expert, B with the rows of all targets, and whether one is shared.

    `rank` is what the config declares. Raises InvalidAdapter for another number of experts.
    """
    a_count, b_count = (_experts(entry) for entry in (pair.a, pair.b))
    experts = targets[0].num_experts or max(a_count, b_count)
    for side, count in (("lora_A", a_count), ("lora_B", b_count)):
        if count not in (1, experts) or experts > MAX_UNKNOWN_EXPERTS:
            raise InvalidAdapter(
                f"{shown(pair.name)}: {side} has {count} experts, expected {experts}"
            )
    wanted_in, wanted_out = targets[0].in_features, sum(t.out_features for t in targets)
    best: tuple[int, bool, bool] | None = None
    for a_turned, b_turned in product((False, True), repeat=2):
        a, b = _expert(pair.a, 0, a_turned), _expert(pair.b, 0, b_turned)
        fits = (a.rows == b.cols) + (a.rows == rank)
        fits += (a.cols == wanted_in) + (b.rows == wanted_out)
        if best is None or fits > best[0]:  # the plain orientation wins a tie
            best = (fits, a_turned, b_turned)
    assert best is not None
    _, a_turned, b_turned = best
    pairs = [
        (_expert(pair.a, e % a_count, a_turned), _expert(pair.b, e % b_count, b_turned))
        for e in range(experts)
    ]
    return pairs, experts > min(a_count, b_count)


def _experts(entry: TensorEntry) -> int:
    return entry.shape[0] if len(entry.shape) == 3 else 1


def _expert(entry: TensorEntry, index: int, turned: bool) -> Window:
    rows, cols = entry.shape[-2:]
    start = index * rows * cols
    if turned:
        return Window(entry, start, cols, rows, 1, cols)
    return Window(entry, start, rows, cols, cols, 1)
