"""What is read of a source for one transfer: each byte once, however many attempts it takes.

The source is asked for more than a chunk at once: chunks are cut for the engines' links, and a
request to an object store costs nearly the same whatever its size.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

import google_crc32c
import numpy as np
from lorafleet.errors import SourceChanged
from lorafleet.frames import encode_chunk

from lorafleet_operator.transfer.patience import Patience

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from lorafleet_operator.transfer.streaming import Limits, Payload

_MOST_DOUBLINGS: Final = 6
"""To half an hour: nobody's source holds a place for days."""


class Reading:
    """The chunks of one payload as encoded messages, by their index in the plan.

    A quarter of the window is read ahead. What an attempt that broke off leaves, read or being
    read, is there for the next one. Belongs to one event loop; `close` always.
    """

    def __init__(self, payload: Payload, limits: Limits) -> None:
        self._payload = payload
        self._most = limits.read_bytes
        self._ahead = max(2, limits.window_chunks // 4)
        self._patience = Patience(
            payload.manifest.adapter,
            limits.least_source_rate,
            limits.patience_seconds * 2 ** min(limits.lost, _MOST_DOUBLINGS),
            limits.others_wait,
        )
        self._held: dict[int, bytes] = {}
        self._coming: dict[int, asyncio.Task[dict[int, bytes]]] = {}

    async def messages(self, indexes: Sequence[int]) -> AsyncGenerator[tuple[int, bytes], None]:
        """Yield (index, message) in the rising order of `indexes`; what else is held is let go of.

        Raises what `payload.read` raises, and SourceUnavailable when that is too slow.
        """
        if not indexes:  # nobody has taken the transfer yet, for whom anything could be kept
            return
        wanted = set(indexes)
        self._held = {each: raw for each, raw in self._held.items() if each in wanted}
        todo = deque(indexes)
        for index in indexes:
            if todo and todo[0] == index and self._knows(index):
                todo.popleft()
            while todo and (todo[0] == index or len(self._coming) < self._ahead):
                self._begin(todo)
            if (task := self._coming.get(index)) is not None:
                run = [key for key, each in self._coming.items() if each is task]
                amount = sum(self._payload.plan[each][1] for each in run)
                messages = await self._patience.wait(task, amount)
                self._held.update(messages)
                for each in run:
                    self._coming.pop(each, None)
            yield index, self._held.pop(index)

    async def confirm(self) -> None:
        """Have the source confirm what was read of it: it may be no slower than with a read.

        Raises what `payload.confirm` raises, and SourceUnavailable when that is too slow.
        """
        if self._payload.confirm is None:
            return
        confirming = asyncio.ensure_future(self._payload.confirm())
        try:
            await self._patience.wait(confirming, 0)
        finally:
            confirming.cancel()

    def keep(self, index: int, message: bytes) -> None:
        """Take back a message of which nobody knows whether it has arrived."""
        self._held[index] = message

    async def close(self) -> None:
        """End the reads under way."""
        tasks = set(self._coming.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _knows(self, index: int) -> bool:
        return index in self._held or index in self._coming

    def _begin(self, todo: deque[int]) -> None:
        """Start one read, of neighbouring chunks at the front of `todo`."""
        run, size = list[int](), 0
        while todo:
            index, length = todo[0], self._payload.plan[todo[0]][1]
            if self._knows(index):
                if run:
                    break
                todo.popleft()
                continue
            if run and (index != run[-1] + 1 or size + length > self._most):
                break
            run.append(todo.popleft())
            size += length
        if run:
            self._coming.update(dict.fromkeys(run, asyncio.create_task(self._read(run))))

    async def _read(self, run: list[int]) -> dict[int, bytes]:
        begin = self._payload.plan[run[0]][0]
        size = sum(self._payload.plan[index][1] for index in run)
        data = memoryview(await self._payload.read(begin, size)).cast("B")
        if data.nbytes != size:
            raise SourceChanged(
                f"adapter {self._payload.manifest.adapter}: the source gave {data.nbytes} bytes at "
                f"{begin}, expected {size}"
            )
        messages = {}
        for index in run:
            offset, length = self._payload.plan[index]
            piece = data[offset - begin : offset - begin + length]
            checksum = google_crc32c.value(np.frombuffer(piece, np.uint8))
            messages[index] = encode_chunk(offset, checksum, piece)
        return messages
