"""The modules of a canonical image: where each packed tensor lies and how it is scaled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lorafleet.profile import ModuleKind


@dataclass(frozen=True)
class PackedTensor:
    """A tensor of the canonical data section: byte `offset` in it, and its shape."""

    offset: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class CanonicalModule:
    """One LoRA pair as the engine uses it; experts of one projection are one module.

    `scaling` is one number, or one for each expert when they differ. `part_ranks` is what the
    source has for each expert (one entry without experts): below `rank` it was padded, 0 means
    that the source has no such pair and zeros stand for it.
    """

    kind: ModuleKind
    rank: int
    scaling: float | tuple[float, ...]
    a: PackedTensor
    b: PackedTensor
    part_ranks: tuple[int, ...] = field(default=(), compare=False)
