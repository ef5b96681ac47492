"""Takes the chunks of one stream into the arena; used by the sidecar and by its receivers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import google_crc32c
import numpy as np
from lorafleet.errors import InvalidAdapter, TransferInterrupted

from lorafleet_sidecar.convert import Converter
from lorafleet_sidecar.crashpoint import crash_at

if TYPE_CHECKING:
    from lorafleet.frames import ChunkFrame
    from lorafleet.layout import Copy

    from lorafleet_sidecar.arena import Arena
    from lorafleet_sidecar.staging_dir import StagingDirectory
    from lorafleet_sidecar.staging_plan import StagingPlan

_MAPPED_AT_ONCE = 1 << 20
"""Bytes of the image whose pages are mapped together, before the first write to one of them."""


class ChunkWriter:
    """Writes chunks of one staging for one stream. Not for concurrent use."""

    def __init__(self, directory: StagingDirectory, plan: StagingPlan, arena: Arena) -> None:
        self._directory = directory
        self._plan = plan
        self._adapter = plan.manifest.adapter
        self._entries = {offset: index for index, (offset, _) in enumerate(plan.chunks)}
        start = directory.extent.offset + len(plan.layout.image_header)
        self._arena = arena
        self._start = start
        self._end = start + plan.layout.data_bytes
        self._mapped = bytearray(plan.layout.data_bytes // _MAPPED_AT_ONCE + 1)
        self._converter = Converter(plan.header, arena.view[start : self._end], self._adapter)
        self._gate = directory.gate()
        self._received = directory.received()
        self._generation = self._gate.generation()

    def close(self) -> None:
        """Close the files; no write may be under way."""
        self._gate.close()
        self._received.close()

    def write(self, chunk: ChunkFrame) -> int:
        """Check one chunk, put it into the image and note it; return its bytes.

        Raises TransferInterrupted for a chunk that the plan does not hold, that came before or
        whose checksum is wrong, and InvalidAdapter for values that are not finite.
        """
        index = self.index_of(chunk)
        with self._gate.passage(self._generation), self._received.claim(index):
            self.check(chunk)
            end = chunk.offset + len(chunk.data)
            try:
                copies = list(self._plan.layout.copies(chunk.offset, end))
                self._populate(copies)
                self._converter.run(copies, chunk.data, chunk.offset)
            except InvalidAdapter as error:
                self._directory.refuse(str(error))
                raise
        crash_at("stage.chunk")
        return len(chunk.data)

    def check(self, chunk: ChunkFrame) -> None:
        """Raise TransferInterrupted for a wrong checksum."""
        found = google_crc32c.value(np.frombuffer(chunk.data, np.uint8))
        if found != chunk.crc32c:
            raise TransferInterrupted(
                f"adapter {self._adapter}: chunk {self.index_of(chunk)} at offset {chunk.offset} "
                f"has crc32c {found:08x}, expected {chunk.crc32c:08x}"
            )

    def _populate(self, copies: list[Copy]) -> None:
        for copy in copies:
            first, last = copy.dst_offset // _MAPPED_AT_ONCE, copy.last() // _MAPPED_AT_ONCE
            for block in range(first, last + 1):
                if not self._mapped[block]:
                    begin = self._start + block * _MAPPED_AT_ONCE
                    self._arena.populate(begin, min(begin + _MAPPED_AT_ONCE, self._end))
                    self._mapped[block] = 1

    def index_of(self, chunk: ChunkFrame) -> int:
        """Return the chunk's index in the plan. Raises TransferInterrupted if it has none."""
        index = self._entries.get(chunk.offset)
        if index is None or self._plan.chunks[index][1] != len(chunk.data):
            wanted = (
                "none starts there" if index is None else f"{self._plan.chunks[index][1]} bytes"
            )
            raise TransferInterrupted(
                f"adapter {self._adapter}: chunk of {len(chunk.data)} bytes at offset "
                f"{chunk.offset} is not in the plan ({wanted})"
            )
        return index
