"""Tensors of the host that are read as those on a device are: through buffers that fill late."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from lorafleet.push.tensors import PIECE_BYTES, Bounce, GivenTensor

if TYPE_CHECKING:
    from collections.abc import Sequence


class LateBuffer:
    """As PinnedBuffer, of a device that copies when it is waited for; what it had is gone when it fills again."""

    said: ClassVar[list[str]] = []
    made = 0

    def __init__(self) -> None:
        self.name = "ab"[LateBuffer.made % 2]
        LateBuffer.made += 1
        self._memory = np.empty(PIECE_BYTES, np.uint8)
        self._coming: list[Any] = []

    @classmethod
    def forget(cls) -> None:
        """Forget what was said before."""
        cls.said.clear()
        cls.made = 0

    def fill(self, pieces: Sequence[Any]) -> None:
        """Take the pieces, and copy nothing yet."""
        self.said.append(f"fill {self.name} with {len(pieces)}")
        self._memory[:] = 0xFF
        self._coming = [np.asarray(piece) for piece in pieces]

    def wait(self) -> memoryview:
        """Copy."""
        self.said.append(f"wait {self.name}")
        at = 0
        for piece in self._coming:
            self._memory[at : at + len(piece)] = piece
            at += len(piece)
        return memoryview(self._memory)


class FarTensor(GivenTensor):
    """A tensor of the host's that counts as one on a device."""

    def __init__(self, name: str, given: Any) -> None:
        super().__init__(name, given, Bounce())
        self.bounce = BOUNCE


BOUNCE = Bounce(LateBuffer)
