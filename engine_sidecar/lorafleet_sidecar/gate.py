"""Who may write into the extent of a staging, across processes.

A gate is open for one generation of writers at a time. Whoever closes it knows on return that
no write is under way and none will come: only then may the extent get another owner.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lorafleet.errors import TransferInterrupted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_SIZE = 8
_CLOSED = 0


class Gate:
    """One opened gate file. Each writer opens its own: the lock belongs to the descriptor."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def close(self) -> None:
        """Close the descriptor (the gate stays as it is)."""
        os.close(self._descriptor)

    def open(self) -> None:
        """Admit a new generation of writers; blocks until those of the last one are done."""
        self.shut()
        self._put(secrets.randbits(63) + 1)

    def shut(self) -> None:
        """Admit nobody; blocks until every write under way has ended."""
        self._put(_CLOSED)  # first, or new writers could keep the lock from us for ever
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def generation(self) -> int:
        """Return the generation that is admitted now; 0 when the gate is shut."""
        return int.from_bytes(os.pread(self._descriptor, _SIZE, 0), "little")

    @contextmanager
    def passage(self, generation: int) -> Iterator[None]:
        """Hold the gate for one write. Raises TransferInterrupted if it is not ours any more."""
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)
        try:
            if generation == _CLOSED or self.generation() != generation:
                raise TransferInterrupted("the staging was ended or taken over by another stream")
            yield
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _put(self, generation: int) -> None:
        os.pwrite(self._descriptor, generation.to_bytes(_SIZE, "little"), 0)
