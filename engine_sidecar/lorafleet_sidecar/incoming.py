"""Reads one gRPC stream message by message, and ends it when the transfer stands still."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc.aio
from lorafleet.errors import TransferInterrupted
from lorafleet.pulse import QUIET_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable


class Incoming:
    """The serialised messages of one call.

    The next one is read while the last is worked on, and no more than that: the rest waits in
    the sender, for gRPC's flow control grants no further bytes.
    """

    def __init__(self, context: Any, stall_seconds: float) -> None:
        self._context = context
        self._stall_seconds = stall_seconds
        self._read: asyncio.Task[bytes] | None = None
        self._heard_at = asyncio.get_running_loop().time()
        self._longest = 0.0  # seconds between two messages so far
        self._hung_up = False

    async def next(self, progress: Callable[[], int] = lambda: 0) -> bytes:
        """Return the next message; raises TransferInterrupted at the end of the stream."""
        raw = await self.next_or_end(progress)
        if raw is None:
            raise TransferInterrupted("the stream ended before its commit")
        return raw

    async def next_or_end(self, progress: Callable[[], int] = lambda: 0) -> bytes | None:
        """Return the next message, None at the end of the stream.

        `progress` counts what has arrived by other streams of the same transfer: while it
        grows, silence here is no stall. Raises TransferInterrupted after `stall_seconds`
        without any progress, and when the call broke.
        """
        seen = progress()
        if self._read is None:
            self._read = self._start()
        while not (await asyncio.wait([self._read], timeout=self._stall_seconds))[0]:
            now = progress()
            if now == seen:
                self._read.cancel()
                raise TransferInterrupted(
                    f"nothing arrived for {self._stall_seconds:g} s; send the manifest again to resume"
                )
            seen = now
        if self._hung_up:
            raise TransferInterrupted("another stream has taken over from this silent one")
        self._longest = max(self._longest, self._silence())
        self._heard_at = asyncio.get_running_loop().time()
        try:
            raw = self._read.result()
        except grpc.aio.BaseError as error:
            raise TransferInterrupted("the call broke") from error
        self._read = None
        if raw is grpc.aio.EOF:  # type: ignore[attr-defined]  # the stubs lack it
            return None
        self._read = self._start()
        return raw

    def is_silent(self) -> bool:
        """Whether it has been silent for well longer than between any two messages before."""
        return self._silence() > max(QUIET_SECONDS, 2 * self._longest)

    def _silence(self) -> float:
        return asyncio.get_running_loop().time() - self._heard_at

    def hang_up(self) -> None:
        """Make the reader give up: its sender is out of reach, and another is here."""
        self._hung_up = True
        self.close()

    def close(self) -> None:
        """Give up reading ahead."""
        if self._read is not None:
            self._read.cancel()

    def _start(self) -> asyncio.Task[bytes]:
        return asyncio.ensure_future(self._context.read())
