"""The shapes in which the pair of one expert parameter is stored.

PEFT writes A [experts*rank, in] and B [out, rank*experts]. Exporters for vLLM's fused experts
write the same bytes as [experts, rank, in] and [out, rank, experts], others B as [experts, out,
rank]. In three dimensions one expert for all of them is a factor that they share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lorafleet.errors import InvalidAdapter
from lorafleet.factors import Window
from lorafleet.quoting import shown
from lorafleet.rewrites.stacked_experts import MAX_UNKNOWN_EXPERTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lorafleet.factors import Pair


class Stored(NamedTuple):
    """The first expert's factors as they are stored, and the steps from expert to expert.

    A step, in elements, of 0 is a factor that all experts share.
    """

    experts: int
    a: Window
    b: Window
    a_step: int
    b_step: int

    def of_experts(self) -> Iterator[tuple[Window, Window]]:
        """Yield the factors of each expert."""
        for e in range(self.experts):
            yield (
                self.a._replace(start=self.a.start + e * self.a_step),
                self.b._replace(start=self.b.start + e * self.b_step),
            )

    @property
    def shared(self) -> bool:
        """Whether several experts share a factor."""
        return self.experts > 1 and not (self.a_step and self.b_step)


def read_shapes(pair: Pair, known: int, declared_rank: int) -> Stored:
    """Return how the pair is stored; `known` is the engine's number of experts, 0 if unknown.

    Raises InvalidAdapter for shapes that are none of these.
    """
    a, b = pair.a.shape, pair.b.shape
    if len(a) == len(b) == 2 and a[0] == b[1] > 0:
        return _flat(pair, known or max(a[0] // declared_rank, 1))
    if len(a) == len(b) == 3 and a[1] > 0 and a[1] in b[1:]:
        return _stacked(pair, known)
    raise InvalidAdapter(
        f"{shown(pair.name)}: lora_A has shape {list(a)} and lora_B {list(b)}, "
        "expected [experts*rank, in] and [out, rank*experts]"
    )


def _flat(pair: Pair, experts: int) -> Stored:
    (size, cols), rows = pair.a.shape, pair.b.shape[0]
    if size % experts or experts > MAX_UNKNOWN_EXPERTS:
        raise InvalidAdapter(
            f"{shown(pair.name)}: lora_A has {size} rows, expected a multiple of {experts} experts"
        )
    rank = size // experts
    a = Window(pair.a, 0, rank, cols, cols, 1)
    return Stored(experts, a, Window(pair.b, 0, rows, rank, size, experts), rank * cols, 1)


def _stacked(pair: Pair, known: int) -> Stored:
    (a_count, rank, cols), b_shape = pair.a.shape, pair.b.shape
    count = known or (a_count if a_count > 1 else b_shape[2])
    if b_shape[1:] == (rank, count):
        b_count, b_step = count, 1
        b = Window(pair.b, 0, b_shape[0], rank, rank * count, count)
    elif b_shape[2] == rank:
        b_count, b_step = b_shape[0], b_shape[1] * rank
        b = Window(pair.b, 0, b_shape[1], rank, rank, 1)
    else:  # [out, rank, another number of experts]
        b_count, b_step, b = b_shape[2], 1, Window(pair.b, 0, b_shape[0], rank, rank, 1)
    experts = known or max(a_count, b_count)
    for side, found in (("lora_A", a_count), ("lora_B", b_count)):
        if found not in (1, experts) or not 0 < experts <= MAX_UNKNOWN_EXPERTS:
            raise InvalidAdapter(
                f"{shown(pair.name)}: {side} has {found} experts, expected {experts}"
            )
    a_step = rank * cols if a_count > 1 else 0
    a = Window(pair.a, 0, rank, cols, cols, 1)
    return Stored(experts, a, b, a_step, b_step if b_count > 1 else 0)
