"""Bytes out of tensors where they are, a piece at a time: torch's on any device, and arrays of numpy.

A tensor of torch is only ever asked through its own methods and its own module, so nothing here
imports torch. Those on a device are copied through two pinned buffers of PIECE_BYTES, several small ones
in each; nothing else is.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from itertools import chain, cycle, groupby
from math import prod
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Protocol

from lorafleet.dtypes import ITEM_BYTES, SAFETENSORS_NAMES
from lorafleet.errors import InvalidAdapter

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

PIECE_BYTES: Final = 4 << 20
"""The most that one message carries."""


class Tensor(Protocol):
    """One tensor of a revision: what a header says of it, and its bytes."""

    dtype: str
    """The safetensors name."""
    shape: tuple[int, ...]
    same: Hashable
    """Equal for tensors that are the same bytes of the same memory; None: not known."""
    bounce: Bounce | None
    """What its bytes come to the host through; None: they are there, and any thread may read them."""

    def pieces(self) -> Iterator[Any]:
        """Yield the bytes, row-major, little-endian, at most PIECE_BYTES each.

        Memoryviews; of one with a `bounce` what that takes. See `read`.
        """
        ...


def size_of(tensor: Tensor) -> int:
    """Return a tensor's bytes."""
    return prod(tensor.shape) * ITEM_BYTES[tensor.dtype]


def in_batches(tensors: Iterable[Tensor]) -> Iterator[list[tuple[int, memoryview]]]:
    """Yield lists of (index, piece), in order; a list is valid until the next is asked for."""
    for bounce, group in groupby(enumerate(tensors), lambda each: each[1].bounce):
        pieces = ((index, piece) for index, tensor in group for piece in tensor.pieces())
        yield from ([each] for each in pieces) if bounce is None else bounce.batches(pieces)


def read(tensors: Iterable[Tensor]) -> Iterator[tuple[int, memoryview]]:
    """Yield (index, piece), in order; one with a `bounce` is valid until the next is asked for."""
    return chain.from_iterable(in_batches(tensors))


class FileTensor:
    """A range of bytes that lie in memory or in a mapped file."""

    bounce: Bounce | None = None

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

    Raises InvalidAdapter for one whose type no adapter has. `bounce`: shared by the tensors of a push,
    for those on a device.
    """

    def __init__(self, name: str, given: Any, bounce: Bounce) -> None:
        kind = _name_of(given.dtype)
        if kind not in SAFETENSORS_NAMES:
            raise InvalidAdapter(
                f"{name} is {kind}, an adapter's tensors are {', '.join(SAFETENSORS_NAMES)}"
            )
        self.dtype = SAFETENSORS_NAMES[kind]
        self.shape = tuple(map(int, given.shape))
        self._is_torch = hasattr(given, "data_ptr")
        self._given = given.detach() if self._is_torch else given
        on_host = not self._is_torch or self._given.is_cpu
        self.bounce = None if on_host else bounce
        self.same: Hashable = None
        if self._is_torch:
            at = self._given.data_ptr()
            if at:
                self.same = (given.device, at, self.dtype, self.shape, self._given.stride())

    def pieces(self) -> Iterator[Any]:
        """Yield copies or views of a few rows at a time, on the device where it is."""
        for part in _parts(self._given, size_of(self)):
            yield self._bytes_of(part)

    def _bytes_of(self, part: Any) -> Any:
        if not self._is_torch:
            whole = part if part.flags.c_contiguous else part.copy()
            return memoryview(whole.reshape(-1).view("uint8"))
        flat = part.contiguous().reshape(-1).view(sys.modules["torch"].uint8)
        return flat if self.bounce is not None else memoryview(flat.numpy())


@lru_cache
def _name_of(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


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


class Buffer(Protocol):
    """PIECE_BYTES of the host's memory that bytes on devices are copied into."""

    def fill(self, pieces: Sequence[Any]) -> None:
        """Begin to copy them, one behind the other."""
        ...

    def wait(self) -> memoryview:
        """Return the memory once they are there."""
        ...


class PinnedBuffer:
    """Takes flat tensors of torch, of any devices. Copies are ordered after what computed them."""

    def __init__(self, *, pinned: bool = True) -> None:
        """pinned: False where there is no device to pin it for."""
        torch = sys.modules["torch"]
        self._memory = torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=pinned)
        self._copied: list[Any] = []  # events

    def fill(self, pieces: Sequence[Any]) -> None:
        """Begin to copy, on the current stream of each one's device; other kinds of devices block.

        What lies on one device is joined there: of a copy to the host each small one takes longer in
        the host's calls than on the bus.
        """
        torch, at = sys.modules["torch"], 0
        self._copied = []
        for device, group in groupby(pieces, attrgetter("device")):
            joined = torch.cat(list(group))
            end = at + joined.nbytes
            self._memory[at:end].copy_(joined, non_blocking=joined.is_cuda)
            if joined.is_cuda:
                self._copied.append(torch.cuda.current_stream(device).record_event())
            at = end

    def wait(self) -> memoryview:
        """Return the memory once the devices have copied."""
        for event in self._copied:
            event.synchronize()
        return memoryview(self._memory.numpy())


class Bounce:
    """What pieces on a device come to the host through: two buffers by turns, made for each reading.

    While one is filled, the host has the other's bytes.
    """

    def __init__(self, make: Callable[[], Buffer] = PinnedBuffer) -> None:
        self._make = make

    def batches(self, pieces: Iterable[tuple[int, Any]]) -> Iterator[list[tuple[int, memoryview]]]:
        """Yield what fits into a buffer together, with its number; valid until the next is asked for."""
        buffers = cycle((self._make(), self._make()))
        before: list[tuple[Buffer, list[tuple[int, Any]]]] = []
        for batch in _together(pieces):
            buffer = next(buffers)
            buffer.fill([piece for _, piece in batch])
            yield from map(_arrived, before)
            before = [(buffer, batch)]
        yield from map(_arrived, before)


def _together(pieces: Iterable[tuple[int, Any]]) -> Iterator[list[tuple[int, Any]]]:
    batch, size = list[tuple[int, Any]](), 0
    for index, piece in pieces:
        length = piece.nbytes  # len() of a tensor takes ten times as long
        if size + length > PIECE_BYTES:
            yield batch
            batch, size = [], 0
        batch.append((index, piece))
        size += length
    if batch:
        yield batch


def _arrived(filled: tuple[Buffer, list[tuple[int, Any]]]) -> list[tuple[int, memoryview]]:
    buffer, batch = filled
    whole, at, found = buffer.wait(), 0, []
    for index, piece in batch:
        end = at + piece.nbytes
        found.append((index, whole[at:end]))
        at = end
    return found
