"""What lies between a source's tensors and canonical modules: windows, pairs and targets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from lorafleet.profile import ModuleKind

if TYPE_CHECKING:
    from lorafleet.header import TensorEntry
    from lorafleet.profile import LoraModule


class Window(NamedTuple):
    """A matrix [rows, cols] inside a source tensor; start and strides are in elements."""

    entry: TensorEntry
    start: int
    rows: int
    cols: int
    row_stride: int
    col_stride: int

    def rows_at(self, first: int, rows: int) -> Window:
        """Return the `rows` rows from `first` on."""
        return self._replace(start=self.start + first * self.row_stride, rows=rows)

    def turned(self) -> Window:
        """Return the transpose."""
        entry, start, rows, cols, row_stride, col_stride = self
        return Window(entry, start, cols, rows, col_stride, row_stride)


def whole(entry: TensorEntry) -> Window:
    """Return the window on all of a two-dimensional tensor."""
    rows, cols = entry.shape
    return Window(entry, 0, rows, cols, cols, 1)


class Pair(NamedTuple):
    """The two factors of one source module.

    `name` is without `base_model.model.` and wrapper segments, as PEFT's patterns see it.
    """

    name: str
    a: TensorEntry
    b: TensorEntry


class Part(NamedTuple):
    """One LoRA pair of a target, or of one of its experts: A [rank, in], B [out, rank]."""

    a: Window
    b: Window
    declared_rank: int  # what adapter_config.json gives the source module
    scaling: float
    source: str  # the source module's name, for messages


@dataclass
class Target:
    """One canonical module and what feeds it; key of `parts` is the expert (0 if none)."""

    module: LoraModule
    parts: dict[int, Part] = field(default_factory=dict)


def expert_name(module: LoraModule, expert: int) -> str:
    """Return the name of one expert's projection; that of the module if it has no experts."""
    if module.kind is not ModuleKind.EXPERTS:
        return module.name
    experts, _, projection = module.name.rpartition(".")
    return f"{experts}.{expert}.{projection}"


def listed(names: list[str], limit: int = 8) -> str:
    """Return the names joined by commas, the rest as a count."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
