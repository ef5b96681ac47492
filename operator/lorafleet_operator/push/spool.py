"""What is kept of pushes, on disk and within a bound: a few revisions of each adapter.

Everything here blocks and runs in threads. Whatever is on disk was complete when it got its name,
so a kill at any point leaves a spool that is right; what is left of a push is used by the next one
of the same revision, or goes.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from lorafleet.errors import StagingFull

from lorafleet_operator.sources.pushed import (
    CONFIG,
    HEADER,
    PLACES,
    Place,
    adapter_folder,
    hex_of,
    packed_places,
    read_places,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from lorafleet_operator.push.revision import PushedRevision

_LOG: Final = logging.getLogger(__name__)
PART: Final = ".part"
MIB: Final = 1 << 20


class Spool:
    """Revisions under `root`; at most `limit_bytes` of tensors, of them `namespace_bytes` for each
    namespace, and `revisions` of each adapter."""

    def __init__(
        self, root: Path, *, limit_bytes: int, namespace_bytes: int, revisions: int
    ) -> None:
        self.root = root
        self._limit = limit_bytes
        self._namespace_limit = min(namespace_bytes, limit_bytes)
        self._revisions = revisions
        self._lock = threading.Lock()
        self._reserved: dict[Path, int] = {}  # by adapter's folder: what a push may still write
        root.mkdir(parents=True, exist_ok=True)

    def folder(self, key: str) -> Path:
        """Return where the adapter `<namespace>/<name>` has its revisions."""
        return adapter_folder(self.root, *key.split("/"))

    def known(self, key: str) -> dict[bytes, Place]:
        """Return where the tensors of the adapter's revisions lie, by digest."""
        found: dict[bytes, Place] = {}
        files = {file.name for file in _files(self.folder(key) / "data")}
        for folder in self._newest_first(key):
            with suppress(FileNotFoundError):
                for place in read_places(folder):
                    if place.file in files:
                        found.setdefault(place.digest, place)
        return found

    def reserve(self, key: str, size: int, wanted: Collection[str]) -> None:
        """Make room for `size` more bytes of the adapter's.

        What goes for it is the oldest, never what is in `wanted` (folders' names by adapter key:
        `<namespace>/<name>/<hex>`). Raises StagingFull.
        """
        folder = self.folder(key)
        with self._lock:
            self._reserved.pop(folder, None)
            namespace = folder.parent
            for root, limit, whose in (
                (namespace, self._namespace_limit, f"namespace {namespace.name} has"),
                (self.root, self._limit, "the operator has"),
            ):
                self._make_room(root, limit - size, wanted)
                used = self._used(root)
                if used + size > limit:
                    raise StagingFull(
                        f"{whose} {used / MIB:.1f} of {limit / MIB:.1f} MiB for pushed revisions, "
                        f"this one needs {size / MIB:.1f}"
                    )
            self._reserved[folder] = size

    def keep(self, key: str, revision: PushedRevision, places: list[Place]) -> None:
        """Give the revision its name: all its tensors lie at `places`."""
        top = self.folder(key) / "revisions"
        top.mkdir(parents=True, exist_ok=True)
        made = top / (hex_of(revision.revision) + PART)
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
        for name, content in (
            (HEADER, revision.header_bytes),
            (CONFIG, revision.config_bytes),
            (PLACES, packed_places(places)),
        ):
            written(made / name, content)
        sync_folder(made)
        shutil.rmtree(top / hex_of(revision.revision), ignore_errors=True)
        made.rename(top / hex_of(revision.revision))
        sync_folder(top)

    def use_again(self, key: str, revision: str) -> bool:
        """Return whether the revision is here; it is the adapter's newest then."""
        try:
            os.utime(self.folder(key) / "revisions" / hex_of(revision))
        except FileNotFoundError:
            return False
        return True

    def release(self, key: str) -> None:
        """Take back what is left of a reservation."""
        with self._lock:
            self._reserved.pop(self.folder(key), None)

    def settle(self, key: str, wanted: Collection[str]) -> None:
        """Let go of the adapter's revisions beyond the newest few, and of what none of them needs."""
        with self._lock:
            self._reserved.pop(self.folder(key), None)
            for old in self._newest_first(key)[self._revisions :]:
                if f"{key}/{old.name}" not in wanted:
                    shutil.rmtree(old, ignore_errors=True)
            self._sweep(self.folder(key))

    def forget_others(self, keys: Collection[str]) -> list[str]:
        """Let go of adapters that are not among `keys` and are not being pushed; return which."""
        gone = []
        with self._lock:
            for folder in self._adapters():
                key = f"{folder.parent.name}/{folder.name}"
                if key not in keys and folder not in self._reserved:
                    shutil.rmtree(folder, ignore_errors=True)
                    with suppress(OSError):
                        folder.parent.rmdir()
                    gone.append(key)
        return gone

    def used_bytes(self) -> int:
        """Return the bytes of tensors that are kept or will be."""
        with self._lock:
            return self._used(self.root)

    def _make_room(self, root: Path, limit: int, wanted: Collection[str]) -> None:
        """Delete the oldest revisions below `root` until at most `limit` bytes are used there."""
        folders = [f for f in self._adapters() if f.is_relative_to(root)]
        if self._used(root) > limit:
            for folder in folders:
                self._sweep(folder)
        for old in sorted((r for f in folders for r in _revisions(f)), key=_age):
            if self._used(root) <= limit:
                return
            folder = old.parents[1]
            if f"{folder.parent.name}/{folder.name}/{old.name}" in wanted:
                continue
            shutil.rmtree(old, ignore_errors=True)
            self._sweep(folder)

    def _sweep(self, folder: Path) -> None:
        """Delete data that no revision of the adapter needs; a push that goes on keeps its part."""
        needed: set[str] = set()
        for revision in _revisions(folder):
            needed |= {place.file for place in read_places(revision)}
        for file in _files(folder / "data"):
            if file.name not in needed and not (PART in file.name and folder in self._reserved):
                file.unlink(missing_ok=True)

    def _used(self, root: Path) -> int:
        below = [folder for folder in self._adapters() if folder.is_relative_to(root)]
        kept = sum(
            file.stat().st_size
            for folder in below
            for file in _files(folder / "data")
            if PART not in file.name or folder not in self._reserved
        )
        return kept + sum(n for f, n in self._reserved.items() if f.is_relative_to(root))

    def _adapters(self) -> list[Path]:
        spaces = [entry for entry in self.root.iterdir() if entry.is_dir()]
        return [entry for space in spaces for entry in space.iterdir() if entry.is_dir()]

    def _newest_first(self, key: str) -> list[Path]:
        return sorted(_revisions(self.folder(key)), key=_age, reverse=True)


def _revisions(folder: Path) -> list[Path]:
    top = folder / "revisions"
    return [r for r in top.iterdir() if PART not in r.name] if top.is_dir() else []


def _files(folder: Path) -> Iterable[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _age(folder: Path) -> tuple[int, str]:
    try:
        return folder.stat().st_mtime_ns, folder.name
    except FileNotFoundError:
        return 0, folder.name


def written(path: Path, content: bytes) -> None:
    """Write a file and have it on the disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
