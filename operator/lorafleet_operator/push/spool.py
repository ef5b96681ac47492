"""What is kept of pushes, on disk and within a bound: a few revisions of each adapter.

Everything here blocks and runs in threads. Whatever is on disk was complete when it got its name,
so a kill at any point leaves a spool that is right; what is left of a push is used by the next one
of the same revision, or goes.
"""

from __future__ import annotations

import shutil
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from lorafleet.errors import PathNotAllowed, StagingFull

from lorafleet_operator.push import shelf
from lorafleet_operator.sources.bounds import checked_object_name
from lorafleet_operator.sources.pushed import (
    Place,
    adapter_folder,
    age,
    entries,
    hex_of,
    newest_first,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from lorafleet_operator.push.revision import PushedRevision

MIB: Final = 1 << 20
_PART_SECONDS: Final = 600.0
"""How long what came of a broken push waits for the next try."""


class Spool:
    """Revisions under `root`, and what they cost (`shelf.cost`): at most `limit_bytes`, of them
    `namespace_bytes` for each namespace; of an adapter `revisions` and what specs name.

    A push begins with `use_again` or `reserve` and ends with `release`. Until then no other push
    takes anything of its adapter's.
    """

    def __init__(
        self, root: Path, *, limit_bytes: int, namespace_bytes: int, revisions: int
    ) -> None:
        self.root = root
        self._limit = limit_bytes
        self._namespace_limit = min(namespace_bytes, limit_bytes)
        self._revisions = revisions
        self._lock = threading.Lock()
        self._going: dict[Path, int] = {}  # by adapter's folder: what a push may still write
        self._costs: dict[Path, int] = {}  # of what else is there, by adapter's folder
        self._missed: set[str] = set()  # adapters that did not exist when somebody last looked

    def look(self) -> None:
        """Learn what is there, and take away what an earlier process left. Raises OSError."""
        self.root.mkdir(parents=True, exist_ok=True)
        with self._lock:
            for folder in self._adapters():
                shelf.sweep(folder, parts=False)
            self._measure_all()

    def folder(self, key: str) -> Path:
        """Return where the adapter `<namespace>/<name>` has its revisions."""
        return adapter_folder(self.root, *key.split("/"))

    def known(self, key: str, sizes: Mapping[bytes, int]) -> dict[bytes, Place]:
        """Return where tensors of the adapter lie, of these digests and sizes."""
        return shelf.known(self.folder(key), sizes)

    def use_again(self, key: str, revision: PushedRevision) -> bool:
        """Return whether the revision is here, whole; it is the adapter's newest then."""
        folder = self.folder(key)
        with self._lock:
            if not shelf.has(folder, revision):
                return False
            shelf.make_newest(folder / "revisions" / hex_of(revision.revision))
            self._going[folder] = 0
        return True

    def reserve(self, key: str, size: int, wanted: Collection[str]) -> None:
        """Make room for `size` more bytes of the adapter's.

        What goes for it is the oldest, never what is in `wanted` (folders' names by adapter key:
        `<namespace>/<name>/<hex>`). Raises StagingFull.
        """
        folder = self.folder(key)
        with self._lock:
            self._going[folder] = 0
            self._measure(folder)
            if not self._fits(folder, size):
                self._measure_all()
            try:
                for root, limit, whose in self._bounds(folder):
                    self._make_room(root, limit - size, wanted, folder)
                    used = self._used(root)
                    if used + size > limit:
                        raise StagingFull(
                            f"{whose} {used / MIB:.1f} of {limit / MIB:.1f} MiB for pushed "
                            f"revisions, this one needs {size / MIB:.1f}"
                        )
            except BaseException:
                self._end(folder)
                raise
            self._going[folder] = size

    def keep(self, key: str, revision: PushedRevision, places: list[Place]) -> None:
        """Give the revision its name: all its tensors lie at `places`."""
        folder = self.folder(key)
        shelf.store(folder, revision, places)
        with self._lock:
            self._going[folder] = 0
            self._measure(folder)

    def settle(self, key: str, wanted: Collection[str]) -> None:
        """Let go of the adapter's revisions beyond the newest few, and of what none of them needs."""
        folder = self.folder(key)
        with self._lock:
            for old in newest_first(folder)[self._revisions :]:
                if f"{key}/{old.name}" not in wanted:
                    shutil.rmtree(old, ignore_errors=True)
            shelf.sweep(folder, parts=True)

    def release(self, key: str) -> None:
        """End a push: take back what is left of its reservation."""
        with self._lock:
            self._end(self.folder(key))

    def tidy(self, keys: Collection[str]) -> list[str]:
        """Let go of what broken pushes left for too long, and of adapters that are not among `keys`
        for the second time; return those."""
        gone = []
        with self._lock:
            missed, self._missed = self._missed, set()
            for folder in self._adapters():
                key = f"{folder.parent.name}/{folder.name}"
                if folder in self._going:
                    continue
                last = shelf.changed_at(folder)
                if last and abs(time.time() - last) > _PART_SECONDS:
                    shelf.sweep(folder, parts=True)
                if key in keys:
                    continue
                self._missed.add(key)
                if key in missed:
                    shutil.rmtree(folder, ignore_errors=True)
                    with suppress(OSError):
                        folder.parent.rmdir()
                    gone.append(key)
            self._measure_all()
        return gone

    def used_bytes(self) -> int:
        """Return what is kept costs, or will."""
        with self._lock:
            return self._used(self.root)

    def _bounds(self, folder: Path) -> tuple[tuple[Path, int, str], ...]:
        namespace = folder.parent
        return (
            (namespace, self._namespace_limit, f"namespace {namespace.name} has"),
            (self.root, self._limit, "the operator has"),
        )

    def _fits(self, folder: Path, size: int) -> bool:
        return all(self._used(root) + size <= limit for root, limit, _ in self._bounds(folder))

    def _make_room(self, root: Path, limit: int, wanted: Collection[str], for_: Path) -> None:
        """Delete the oldest revisions below `root` until at most `limit` bytes are used there."""
        if self._used(root) <= limit:
            return
        folders = [
            each
            for each in self._adapters()
            if each.is_relative_to(root) and (each == for_ or each not in self._going)
        ]
        for folder in folders:
            shelf.sweep(folder, parts=folder != for_)
            self._measure(folder)
        for old in sorted((r for f in folders for r in newest_first(f)), key=age):
            if self._used(root) <= limit:
                return
            folder = old.parents[1]
            if f"{folder.parent.name}/{folder.name}/{old.name}" in wanted:
                continue
            shutil.rmtree(old, ignore_errors=True)
            shelf.sweep(folder, parts=folder != for_)
            self._measure(folder)

    def _end(self, folder: Path) -> None:
        self._going.pop(folder, None)
        self._measure(folder)

    def _measure(self, folder: Path) -> None:
        """Note what is there; a push's own files are in what it has reserved."""
        self._costs[folder] = shelf.cost(folder, parts=folder not in self._going)
        if not self._costs[folder]:
            del self._costs[folder]

    def _measure_all(self) -> None:
        self._costs.clear()
        for folder in self._adapters():
            self._measure(folder)

    def _used(self, root: Path) -> int:
        both = (*self._costs.items(), *self._going.items())
        everywhere = root == self.root
        return sum(size for folder, size in both if everywhere or folder.parent == root)

    def _adapters(self) -> list[Path]:
        """Return the adapters' folders; a disk has others of its own, such as lost+found."""
        spaces = filter(_is_named, entries(self.root))
        return [each for space in spaces for each in entries(space) if _is_named(each)]


def _is_named(folder: Path) -> bool:
    try:
        checked_object_name(folder.name, "name")
    except PathNotAllowed:
        return False
    return folder.is_dir()
