"""The canonical order and place of every tensor, and the moves that fill them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lorafleet.canonical import CanonicalModule, PackedTensor
from lorafleet.dtypes import ITEM_BYTES
from lorafleet.errors import TooLarge
from lorafleet.header import quoted, rendered_kind
from lorafleet.moves import Move, move
from lorafleet.profile import ModuleKind
from lorafleet.rewrites.wrappers import PEFT_PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lorafleet.factors import Part, Target

MAX_DATA_BYTES = 1 << 46


@dataclass
class Packing:
    """The data section as it grows: modules, the file's entries, moves and ranges of zeros."""

    dtype: str  # safetensors name
    modules: dict[str, CanonicalModule] = field(default_factory=dict)
    entries: list[str] = field(default_factory=list)  # of the image's header, rendered
    moves: list[Move] = field(default_factory=list)
    zeros: list[tuple[int, int]] = field(default_factory=list)
    size: int = 0

    def add(self, name: str, target: Target, rank: int, scaling: float) -> None:
        """Append one module; `rank` and `scaling` are for experts that have no part."""
        module, parts = target.module, target.parts
        kind = module.kind
        count = module.num_experts if kind is ModuleKind.EXPERTS else 1
        rank = max((part.a.rows for part in parts.values()), default=rank)
        scalings = _scalings(parts, count, scaling)
        a = self._place(name, "A", kind, count, (rank, module.in_features), parts)
        b = self._place(name, "B", kind, count, (module.out_features, rank), parts)
        ranks = tuple(parts[e].a.rows if e in parts else 0 for e in range(count))
        self.modules[name] = CanonicalModule(kind, rank, scalings, a, b, ranks)

    def _place(
        self,
        name: str,
        side: str,
        kind: ModuleKind,
        count: int,
        shape: tuple[int, int],
        parts: Mapping[int, Part],
    ) -> PackedTensor:
        rows, cols = shape
        bytes_each = rows * cols * ITEM_BYTES[self.dtype]
        first = offset = self.size
        self.size += count * bytes_each
        if self.size > MAX_DATA_BYTES:
            raise TooLarge(f"canonical data of more than {MAX_DATA_BYTES} bytes")
        head, tail = _around_expert(name, side, kind)
        tail = f"{tail}:{rendered_kind(self.dtype, shape)}"
        for expert in range(count):
            end = offset + bytes_each
            number = expert if kind is ModuleKind.EXPERTS else ""
            self.entries.append(f"{head}{number}{tail}[{offset},{end}]}}")
            part = parts.get(expert)
            window = None if part is None else part.a if side == "A" else part.b
            if window is None or window.rows != rows or window.cols != cols:
                self._zero(offset, bytes_each)  # a lower rank leaves rows or columns unwritten
            if window is not None:
                item = move(window, offset, cols)
                if item is not None:
                    self.moves.append(item)
            offset = end
        return PackedTensor(first, (count, *shape) if kind is ModuleKind.EXPERTS else shape)

    def _zero(self, offset: int, length: int) -> None:
        if self.zeros and sum(self.zeros[-1]) == offset:
            offset, length = self.zeros[-1][0], self.zeros.pop()[1] + length
        self.zeros.append((offset, length))


def pack(targets: Mapping[str, Target], dtype: str) -> Packing:
    """Return the packing of all targets, in natural order of their names.

    A projection without any part takes rank and scaling of its layer's other projections.
    """
    packing = Packing(dtype)
    ranks: dict[str, tuple[int, float]] = {}
    for name, target in targets.items():
        if target.parts:
            layer = name.rpartition(".")[0]
            most = max((part.a.rows, part.scaling) for part in target.parts.values())
            ranks[layer] = max(ranks.get(layer, (0, 0.0)), most)
    for name in sorted(targets, key=_natural):
        packing.add(name, targets[name], *ranks.get(name.rpartition(".")[0], (1, 1.0)))
    return packing


def _scalings(parts: Mapping[int, Part], count: int, otherwise: float) -> float | tuple[float, ...]:
    found = {part.scaling for part in parts.values()} or {otherwise}
    if len(found) == 1:
        return found.pop()
    return tuple(parts[e].scaling if e in parts else otherwise for e in range(count))


def _around_expert(name: str, side: str, kind: ModuleKind) -> tuple[str, str]:
    """Return a tensor's name as JSON, cut where the expert's number belongs."""
    if kind is ModuleKind.EXPERTS:
        experts, _, projection = name.rpartition(".")
        head, tail = f"{experts}.", f".{projection}.lora_{side}.weight"
    elif kind is ModuleKind.EMBEDDING:
        head, tail = name, f".lora_embedding_{side}"
    else:
        head, tail = name, f".lora_{side}.weight"
    return quoted(PEFT_PREFIX + head)[:-1], quoted(tail)[1:]


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key that puts layer 2 before layer 10."""
    return [(int(t) if t.isdecimal() else 0, t) for t in re.split(r"(\d+)", name)]
