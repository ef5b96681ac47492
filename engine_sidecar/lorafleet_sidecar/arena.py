"""The arena: one file of fixed size on the pod's memory volume, mapped once.

The whole file is allocated at the start, so that its pages are charged to the sidecar and not
to the container that happens to touch them first, and so that no write into it can fail later.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import mmap
import os
from typing import TYPE_CHECKING

from lorafleet.errors import LorafleetError

from lorafleet_sidecar.allocator import ALIGNMENT, Extent

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

log = logging.getLogger(__name__)

NAME = "arena"
_KEEP_SIZE = 0x01
_PUNCH_HOLE = 0x02
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_POPULATE_WRITE = 23  # Linux 5.14; older kernels refuse it, and the faults come one by one


class ArenaError(LorafleetError):
    """Raised when the volume cannot carry the arena; ends the start of the sidecar."""

    terminal = True


class Arena:
    """The mapped file. Which part belongs to whom is the index's knowledge."""

    def __init__(self, path: Path, descriptor: int, size: int, *, writable: bool) -> None:
        self.path = path
        self.size = size
        self._descriptor = descriptor
        access = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
        self._map = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED, prot=access)
        self.view = memoryview(self._map)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._map)) if writable else 0

    @classmethod
    def create_or_open(cls, volume: Path, limit: int, holes: Iterable[Extent] = ()) -> Arena:
        """Return the volume's arena of `limit` bytes, allocated whole except for `holes`.

        `holes` are the ranges whose pages belong to plain exports. The size is fixed for the
        life of the volume, for the engine's workers map and register the file at their start.
        Raises `ArenaError` for another size, for a limit under one extent, and when the volume
        is too small.
        """
        size = limit - limit % ALIGNMENT
        if size < ALIGNMENT:
            raise ArenaError(f"arena limit is {limit} bytes, the least is {ALIGNMENT}")
        path = volume / NAME
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            found = os.fstat(descriptor).st_size
            if found not in (0, size) and _was_completed(volume):
                raise ArenaError(
                    f"{path} has {found} bytes and the limit is {size}: the size of an arena is "
                    f"fixed for the life of its volume (the engine maps it)"
                )
            os.ftruncate(descriptor, size)
            _allocate_around(descriptor, size, holes, path)
            # The engine runs as another user, of the same group. It only reads, but a driver that
            # cannot pin read-only memory needs a mapping that could be written to.
            os.fchmod(descriptor, 0o664)
            _completed_mark(volume).touch()
            return cls(path, descriptor, size, writable=True)
        except BaseException:
            os.close(descriptor)
            raise

    @classmethod
    def attach(cls, volume: Path) -> Arena:
        """Map an arena that another process made, for writing into a given extent of it."""
        path = volume / NAME
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return cls(path, descriptor, os.fstat(descriptor).st_size, writable=True)
        except BaseException:
            os.close(descriptor)
            raise

    def extent_view(self, extent: Extent) -> memoryview:
        """Return the writable bytes of `extent`."""
        return self.view[extent.offset : extent.end]

    def populate(self, begin: int, end: int) -> None:
        """Map the pages of [begin, end) for writing in one call.

        The pages exist; what is missing in a process that writes to them first are the entries
        of its page table. One fault for each costs more than the copy itself: 1.2 s a GiB
        against 0.2 s for this (measured on a virtual machine).
        """
        begin -= begin % mmap.PAGESIZE
        _libc.madvise(self._address + begin, min(end, self.size) - begin, _POPULATE_WRITE)

    def punch(self, extent: Extent) -> None:
        """Give the pages of `extent` back to the volume; its bytes read as zeros after that."""
        if _libc.fallocate(self._descriptor, _PUNCH_HOLE | _KEEP_SIZE, extent.offset, extent.size):
            code = ctypes.get_errno()
            raise OSError(code, f"cannot punch {extent} out of the arena: {os.strerror(code)}")

    def refill(self, extent: Extent) -> None:
        """Allocate the pages of `extent` again. Raises `ArenaError` when the volume is full."""
        _allocate(self._descriptor, extent, self.path)

    def close(self) -> None:
        """Let the file go; the mapping ends with the last view of it. May be called again."""
        if self._descriptor < 0:
            return
        os.close(self._descriptor)
        self._descriptor = -1
        try:
            self.view.release()
            self._map.close()
        except BufferError:
            log.debug("%s is still being viewed; the last view unmaps it", self.path)


def _completed_mark(volume: Path) -> Path:
    return volume / ".arena-allocated"


def _was_completed(volume: Path) -> bool:
    return _completed_mark(volume).exists()


def _allocate(descriptor: int, extent: Extent, path: Path) -> None:
    try:
        os.posix_fallocate(descriptor, extent.offset, extent.size)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        room = os.statvfs(path.parent)
        free = room.f_bavail * room.f_frsize
        raise ArenaError(
            f"{path}: the volume has {free} bytes left, the arena wants {extent.size} more"
        ) from error


def _allocate_around(descriptor: int, size: int, holes: Iterable[Extent], path: Path) -> None:
    at = 0
    for hole in [*sorted(holes), Extent(size, 0)]:
        if hole.offset > at:
            _allocate(descriptor, Extent(at, hole.offset - at), path)
        at = hole.end


def in_units(size: int) -> str:
    """Return bytes in the largest binary unit that keeps them whole, or in MiB."""
    if size >= 1 << 30 and size % (1 << 30) == 0:
        return f"{size >> 30} GiB"
    return f"{size >> 20} MiB"
