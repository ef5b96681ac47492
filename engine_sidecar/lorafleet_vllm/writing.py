"""How one slot is written: which, what is known to be blank there, and how large a copy may be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch


class Blank:
    """Which buffers hold nothing but zeros in which slot, by our own writes: no need to zero them.

    An adapter of a few MiB on the attention of a large MoE model leaves gigabytes of its slot empty.
    Whoever lets others write to slots has to `forget`.
    """

    def __init__(self) -> None:
        self._known: set[tuple[int, int]] = set()  # slot, address of the buffer

    def take(self, buffers: Iterable[torch.Tensor], index: int) -> None:
        """Note that slot `index` of these is about to be written."""
        self._known.difference_update((index, each.data_ptr()) for each in buffers)

    def lacking(self, buffers: Iterable[torch.Tensor], index: int) -> list[torch.Tensor]:
        """Return those that are not known to be blank in slot `index`, to be zeroed now."""
        found = [each for each in buffers if (index, each.data_ptr()) not in self._known]
        self._known.update((index, each.data_ptr()) for each in found)
        return found

    def forget(self) -> None:
        """Know nothing any more."""
        self._known.clear()


@dataclass(frozen=True)
class Writing:
    """The slot that is written now.

    `largest_copy` (bytes) bounds what is copied at once, None for no bound: a step's own small
    copies wait behind whatever the copy engine has begun.
    """

    index: int
    blank: Blank
    largest_copy: int | None = None
