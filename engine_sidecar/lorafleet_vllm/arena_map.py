"""The arena, mapped read-only into a worker and registered with CUDA once."""

from __future__ import annotations

import logging
import math
import mmap
import os
import warnings
from typing import TYPE_CHECKING

import torch
from lorafleet.errors import InvalidAdapter

from lorafleet_vllm import cuda_host

if TYPE_CHECKING:
    from pathlib import Path

_log = logging.getLogger("vllm.lorafleet")


class ArenaMap:
    """One mapping of one arena file.

    `registered_bytes` is the length that the CUDA driver knows (0 on the CPU, or where it
    refused; copies out of the mapping are then slower, not wrong). The mapping outlives the file:
    views stay valid when the sidecar replaces the arena.
    """

    def __init__(self, path: Path, *, cuda: bool) -> None:
        self.identity = _identity(path)
        self.size = path.stat().st_size
        self.registered_bytes = 0
        self._base = _map(path, self.size, writable=False)
        self._typed: dict[torch.dtype, torch.Tensor] = {}  # views of all of it
        if cuda:
            self._register(path)

    def _register(self, path: Path) -> None:
        """Register the whole file in one call: a copy that spans two registrations fails."""
        if cuda_host.register(self._base, read_only=True):
            self.registered_bytes = self.size
            return
        # The driver cannot pin read-only memory: nothing of ours writes to the mapping either way.
        writable = _map(path, self.size, writable=True) if os.access(path, os.W_OK) else None
        if writable is not None and cuda_host.register(writable, read_only=False):
            self._base = writable
            self.registered_bytes = self.size
            return
        _log.warning("lorafleet: CUDA did not register %s; loads will be slower", path)

    def view(self, offset: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return the tensor at byte `offset`, without a copy. Never write to it.

        Raises InvalidAdapter when it does not lie in the arena or is not aligned.
        """
        nbytes = math.prod(shape) * dtype.itemsize
        if offset < 0 or offset + nbytes > self.size:
            raise InvalidAdapter(
                f"tensor at bytes {offset}..{offset + nbytes} is outside the arena of {self.size}"
            )
        if offset % dtype.itemsize:
            raise InvalidAdapter(f"tensor at byte {offset} is not aligned to {dtype}")
        typed = self._typed.get(dtype)
        if typed is None:
            whole = self.size // dtype.itemsize * dtype.itemsize
            typed = self._typed[dtype] = self._base[:whole].view(dtype)
        start = offset // dtype.itemsize
        return typed[start : start + nbytes // dtype.itemsize].view(shape)


class Arena:
    """The current mapping of `path`, renewed when the sidecar has made a new file."""

    def __init__(self, path: Path, *, cuda: bool) -> None:
        self._path = path
        self._cuda = cuda
        self._map: ArenaMap | None = None

    def current(self) -> ArenaMap:
        """Return the mapping of the file that exists now. Raises InvalidAdapter without one."""
        if not self._path.exists():
            raise InvalidAdapter(f"{self._path} does not exist: the sidecar has made no arena")
        if self._map is None or self._map.identity != _identity(self._path):
            self._map = ArenaMap(self._path, cuda=self._cuda)
        return self._map

    def prepare(self) -> None:
        """Map now, at engine start, if the file is there: registering later stalls decoding."""
        if self._path.exists():
            self.current()
        else:
            _log.warning("lorafleet: %s does not exist yet; it is mapped at first load", self._path)

    @property
    def registered_bytes(self) -> int:
        """Bytes registered with the CUDA driver now."""
        return 0 if self._map is None else self._map.registered_bytes


def _identity(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size


def _map(path: Path, size: int, *, writable: bool) -> torch.Tensor:
    """Return the file's bytes as one uint8 tensor over a shared mapping."""
    flags, protection = os.O_RDONLY, mmap.PROT_READ
    if writable:
        flags, protection = os.O_RDWR, mmap.PROT_READ | mmap.PROT_WRITE
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        mapping = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED, prot=protection)
    finally:
        os.close(descriptor)
    with warnings.catch_warnings():
        # Torch has no read-only tensors and says so; the kernel enforces it instead.
        warnings.simplefilter("ignore", UserWarning)
        return torch.frombuffer(mapping, dtype=torch.uint8)
