"""Where the packed tensors of an image lie, and which of them the bytes of a chunk go to."""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from lorafleet.dtypes import ITEM_BYTES, SAFETENSORS_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lorafleet.layout import CanonicalLayout

    from lorafleet_sidecar.fingerprints import Scaling

Key = tuple[str, str]
"""A packed tensor: its module, and "a" or "b"."""


class Packed(NamedTuple):
    """One packed tensor: bytes [begin, end) of the image, and what the engine makes of its values."""

    begin: int
    end: int
    shape: tuple[int, ...]
    scaling: Scaling


def packed_tensors(layout: CanonicalLayout) -> dict[Key, Packed]:
    """Return all packed tensors of an image."""
    head, item = len(layout.image_header), ITEM_BYTES[SAFETENSORS_NAMES[layout.dtype]]
    found: dict[Key, Packed] = {}
    for name, module in layout.modules.items():
        for side, tensor, scaling in (("a", module.a, 1.0), ("b", module.b, module.scaling)):
            begin = head + tensor.offset
            end = begin + math.prod(tensor.shape) * item
            found[name, side] = Packed(begin, end, tensor.shape, scaling)
    return found


class Feeding:
    """Tells which packed tensors the chunks of a transfer feed."""

    def __init__(self, layout: CanonicalLayout) -> None:
        self._layout = layout
        self._head = len(layout.image_header)
        places = packed_tensors(layout).items()
        self._placed = sorted((place.begin, place.end, key) for key, place in places)
        self._ends = [end for _, end, _ in self._placed]

    def fed_by(self, offset: int, length: int) -> Iterator[Key]:
        """Yield the packed tensors that a chunk feeds, and what lies between them; some twice."""
        for copy in self._layout.copies(offset, offset + length):
            first, last = self._head + copy.dst_offset, self._head + copy.last()
            at = bisect_right(self._ends, first)
            while at < len(self._placed) and self._placed[at][0] <= last:
                yield self._placed[at][2]
                at += 1
