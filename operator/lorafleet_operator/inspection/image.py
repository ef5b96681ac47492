"""The canonical tensors of an adapter, filled from its source exactly as staging fills them.

The same layout and the same copies as in a sidecar, with one difference: the values keep the
source's precision, so that the numbers are the trainer's. The cast to the engine's type is tried
on every value, because that is where an adapter can still be refused.
"""

from __future__ import annotations

import asyncio
import bisect
import mmap
import os
import tempfile
from collections import deque
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from lorafleet.chunk_plan import chunk_plan
from lorafleet.dtypes import ITEM_BYTES, SAFETENSORS_NAMES, TORCH_NAMES
from lorafleet.errors import InvalidAdapter
from lorafleet.profile import ModuleKind
from lorafleet.quoting import shown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from lorafleet.canonical import CanonicalModule, PackedTensor
    from lorafleet.header import SafetensorsHeader
    from lorafleet.layout import CanonicalLayout, Copy

    from lorafleet_operator.inspection.numbers import Array
    from lorafleet_operator.sources.base import Buffer, ResolvedAdapter

CHUNK_BYTES = 8 << 20
READS_AHEAD = 4
IN_MEMORY_BYTES = 64 << 20
"""Up to here the tensors are kept in memory; above it in a temporary file without a name."""

_NUMPY: dict[str, np.dtype[Any]] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}


class CanonicalImage:
    """The canonical data section of one adapter; `engine_dtype` is torch's name or ""."""

    def __init__(
        self, header: SafetensorsHeader, layout: CanonicalLayout, adapter: str, engine_dtype: str
    ) -> None:
        self._header = header
        self._layout = layout
        self._adapter = adapter
        # An engine of unknown dtype gets the source's, but never float64.
        own = "float32" if layout.dtype == "float64" else layout.dtype
        self._cast = SAFETENSORS_NAMES.get(engine_dtype) or SAFETENSORS_NAMES[own]
        self._begins = [tensor.begin for tensor in header.tensors]
        # New memory and new files hold zeros, which is what the layout's `zero_fill` asks for.
        self._data = _room(layout.data_bytes)

    async def fill(self, content: ResolvedAdapter) -> None:
        """Read the whole source once, from front to back.

        Raises InvalidAdapter for values that are not finite, before or after the cast, and what
        `ResolvedAdapter.confirm` raises.
        """
        async for begin, data in _chunks(content, chunk_plan(self._header, CHUNK_BYTES)):
            for copy in self._layout.copies(begin, begin + len(data)):
                self._run(copy, data, begin)
        await content.confirm()

    def factors(self) -> Iterator[tuple[str, float, Array, Array]]:
        """Yield name, scaling, A [rank, in] and B [out, rank] in float64, experts one by one.

        Rank and columns are the source's: without padding, and without experts that it lacks.
        Raises InvalidAdapter for values of B that are not finite once the engine has scaled them.
        """
        for name, module in self._layout.modules.items():
            a, b = self._packed(module.a), self._packed(module.b)
            for part, rank in enumerate(module.part_ranks):
                scaling, one_a, one_b, label = _scaling(module, part), a, b, name
                if module.kind is ModuleKind.EXPERTS:
                    if not rank:
                        continue
                    experts, _, projection = name.rpartition(".")
                    label = f"{experts}.{part}.{projection}"
                    one_a, one_b = a[part, :rank], b[part, :, :rank]
                self._check_scaled(label, scaling, one_b)
                yield label, scaling, one_a.astype(np.float64), one_b.astype(np.float64)

    def _check_scaled(self, name: str, scaling: float, b: Array) -> None:
        """Scale B as the engine does: multiplied in float32, rounded to its own type."""
        if abs(scaling) <= 1:
            return
        cast = _NUMPY[self._cast]
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = (b.astype(cast).astype(np.float32) * np.float32(scaling)).astype(cast)
        if not np.isfinite(scaled).all():
            raise InvalidAdapter(
                f"adapter {self._adapter}: {shown(name)}.lora_B: not finite after the scaling in "
                f"{TORCH_NAMES[self._cast]} (lora_alpha makes it {scaling:g})"
            )

    def _packed(self, tensor: PackedTensor) -> Array:
        dtype = _NUMPY[SAFETENSORS_NAMES[self._layout.dtype]]
        return np.ndarray(tensor.shape, dtype, self._data, tensor.offset)

    def _run(self, copy: Copy, data: Buffer, begin: int) -> None:
        shape = (copy.rows, copy.elements)
        source = _strided(
            data, copy.src_offset - begin, copy.src_dtype, shape, copy.src_row_stride, copy.src_step
        )
        target = _strided(
            self._data, copy.dst_offset, copy.dst_dtype, shape, copy.dst_row_stride, copy.dst_step
        )
        with np.errstate(over="ignore", invalid="ignore"):
            np.copyto(target, source, casting="unsafe")
            cast = source.astype(_NUMPY[self._cast], copy=False)
        finite = np.isfinite(cast)
        if not finite.all():
            row, column = divmod(int(finite.argmin()), copy.elements)
            self._refuse(copy, row, column, was_finite=bool(np.isfinite(source[row, column])))

    def _refuse(self, copy: Copy, row: int, column: int, *, was_finite: bool) -> None:
        """Name the tensor of one value; a copy may run through several tensors."""
        element = row * copy.src_row_stride + column * copy.src_step
        offset = copy.src_offset + element * ITEM_BYTES[copy.src_dtype]
        tensor = self._header.tensors[bisect.bisect_right(self._begins, offset) - 1]
        if was_finite:
            cast = TORCH_NAMES[self._cast]
            raise InvalidAdapter(
                f"adapter {self._adapter}: {shown(tensor.name)}: not finite after the cast to {cast}"
            )
        raise InvalidAdapter(f"adapter {self._adapter}: non-finite values in {shown(tensor.name)}")


async def _chunks(
    content: ResolvedAdapter, plan: list[tuple[int, int]]
) -> AsyncIterator[tuple[int, Buffer]]:
    """Yield the chunks in order, a few reads ahead, as a transfer does."""
    reads: deque[tuple[int, asyncio.Task[Buffer]]] = deque()
    upcoming = iter(plan)
    try:
        while True:
            while len(reads) < READS_AHEAD and (chunk := next(upcoming, None)) is not None:
                reads.append((chunk[0], asyncio.create_task(content.read(*chunk))))
            if not reads:
                return
            begin, task = reads.popleft()
            yield begin, await task
    finally:
        for _, task in reads:
            task.cancel()
        await asyncio.gather(*(task for _, task in reads), return_exceptions=True)


def _room(size: int) -> mmap.mmap:
    """Return `size` bytes of zeros. Raises OSError if the disk has no room for them."""
    if size <= IN_MEMORY_BYTES:
        return mmap.mmap(-1, max(1, size))
    with tempfile.TemporaryFile(prefix="lorafleet-") as file:
        # Taken now: a disk that fills up under a map ends the process without a word.
        os.posix_fallocate(file.fileno(), 0, size)
        return mmap.mmap(file.fileno(), size)


def _scaling(module: CanonicalModule, part: int) -> float:
    return module.scaling if isinstance(module.scaling, float) else module.scaling[part]


def _strided(
    buffer: Buffer | mmap.mmap,
    offset: int,
    dtype: str,
    shape: tuple[int, int],
    row_stride: int,
    step: int,
) -> Array:
    """Return a view of `shape` elements at byte `offset`; numpy checks that it stays inside."""
    size = ITEM_BYTES[dtype]
    return np.ndarray(shape, _NUMPY[dtype], buffer, offset, (row_stride * size, step * size))
