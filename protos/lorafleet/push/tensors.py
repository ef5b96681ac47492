"""Bytes out of tensors where they are, a piece at a time: torch's on any device, and arrays of numpy.

A tensor of torch is only ever asked through its own methods and its own module, so nothing here
imports torch. One on a device is copied through a pinned buffer of PIECE_BYTES; nothing else is.
"""

from __future__ import annotations

import sys
from math import prod
from typing import TYPE_CHECKING, Any, Final, Protocol

from lorafleet.dtypes import ITEM_BYTES, SAFETENSORS_NAMES
from lorafleet.errors import InvalidAdapter

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

PIECE_BYTES: Final = 4 << 20
"""The most that one message carries."""


class Tensor(Protocol):
    """One tensor of a revision: what a header says of it, and its bytes."""

    dtype: str
    """The safetensors name."""
    shape: tuple[int, ...]
    same: Hashable
    """Equal for tensors that are the same bytes of the same memory; None: not known."""
    beside: bool
    """Whether several threads may read it and others at once: they share no buffer."""

    def pieces(self) -> Iterator[memoryview]:
        """Yield the bytes, row-major, little-endian; a piece is valid until the next is asked for."""
        ...


def size_of(tensor: Tensor) -> int:
    """Return a tensor's bytes."""
    return prod(tensor.shape) * ITEM_BYTES[tensor.dtype]


class FileTensor:
    """A range of bytes that lie in memory or in a mapped file."""

    beside = True

    def __init__(
        self, dtype: str, shape: tuple[int, ...], data: memoryview, *, same: Hashable = None
    ) -> None:
        self.dtype, self.shape, self._data, self.same = dtype, shape, data, same

    def pieces(self) -> Iterator[memoryview]:
        """Yield slices of the range."""
        for at in range(0, len(self._data), PIECE_BYTES):
            yield self._data[at : at + PIECE_BYTES]


class GivenTensor:
    """A tensor of torch or an array of numpy (`ml_dtypes` included).

    Raises InvalidAdapter for one whose type no adapter has. `bounce` is shared by the tensors of a
    push: see Bounce.
    """

    def __init__(self, name: str, given: Any, bounce: Bounce) -> None:
        kind = str(given.dtype).removeprefix("torch.")
        if kind not in SAFETENSORS_NAMES:
            raise InvalidAdapter(
                f"{name} is {kind}, an adapter's tensors are {', '.join(SAFETENSORS_NAMES)}"
            )
        self.dtype = SAFETENSORS_NAMES[kind]
        self.shape = tuple(int(size) for size in given.shape)
        self._is_torch = hasattr(given, "data_ptr")
        self._given = given.detach() if self._is_torch else given
        self._bounce = bounce
        self.beside = not self._is_torch or self._given.device.type == "cpu"
        self.same: Hashable = None
        if self._is_torch:
            strides = tuple(self._given.stride())
            at = self._given.data_ptr()
            self.same = (str(given.device), at, self.dtype, self.shape, strides) if at else None

    def pieces(self) -> Iterator[memoryview]:
        """Yield copies or views of a few rows at a time."""
        for part in _parts(self._given, size_of(self)):
            yield self._bytes_of(part)

    def _bytes_of(self, part: Any) -> memoryview:
        if not self._is_torch:
            whole = part if part.flags.c_contiguous else part.copy()
            return memoryview(whole.reshape(-1).view("uint8"))
        flat = part.contiguous().reshape(-1).view(sys.modules["torch"].uint8)
        if flat.device.type != "cpu":
            flat = self._bounce.through(flat)
        return memoryview(flat.numpy())


def _parts(given: Any, size: int) -> Iterator[Any]:
    """Yield slices of at most PIECE_BYTES, in order; one that is not contiguous is cut by rows."""
    if size == 0:
        return
    if size <= PIECE_BYTES:
        yield given
    elif _contiguous(given):
        flat = given.reshape(-1)
        step = PIECE_BYTES * len(flat) // size
        for at in range(0, len(flat), step):
            yield flat[at : at + step]
    else:
        rows = len(given)
        step = PIECE_BYTES * rows // size
        for at in range(0, rows, max(step, 1)):
            if step:
                yield given[at : at + step]
            else:
                yield from _parts(given[at], size // rows)


def _contiguous(given: Any) -> bool:
    found = given.is_contiguous() if hasattr(given, "data_ptr") else given.flags.c_contiguous
    return bool(found)


class Bounce:
    """A pinned buffer that pieces on a device are copied through; made when the first one comes."""

    def __init__(self) -> None:
        self._buffer: Any = None

    def through(self, flat: Any) -> Any:
        """Return the bytes of `flat` (uint8, at most PIECE_BYTES) on the host, until the next call."""
        torch = sys.modules["torch"]
        if self._buffer is None:
            self._buffer = torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=True)
        there = self._buffer[: len(flat)]
        there.copy_(flat)  # blocking: ordered after what computed it
        return there
