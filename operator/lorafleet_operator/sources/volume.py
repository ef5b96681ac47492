"""A folder of a mounted PersistentVolumeClaim.

The path is walked one component at a time with `O_NOFOLLOW` relative to the folder reached so
far, and links are resolved by us: nothing outside the claim's own folder can be opened, also not
by a link that changes while we look. Every read opens the file anew, so no descriptor is held
and a replaced file is noticed.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

from lorafleet.errors import (
    AccessDenied,
    PathNotAllowed,
    SourceChanged,
    SourceError,
    SourceNotFound,
    SourceUnavailable,
)

from lorafleet_operator.sources import assemble, bounds

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lorafleet_operator.sources.base import Buffer, ResolvedAdapter

T = TypeVar("T")
_MAX_LINKS = 40
_MAX_REF_BYTES = 64
_COMMIT = re.compile(rb"[0-9a-f]{6,64}")
_YEAR_9999 = 253402300799
_MAX_WRITTEN_LINK = 255
_HEAD_BYTES = 64 << 10
"""Read when a file is opened: a configuration and most headers are in it, and each further visit to
the volume's threads takes up to 5 ms beside a busy loop."""
_WRITTEN_LINK = re.compile(rb"((?:\.\./)+blobs/[0-9A-Za-z]+)\n?")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a pipe would wait for its writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


@lru_cache(maxsize=4)
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="volume")


class VolumeSource:
    """An adapter at `<root>/<namespace>/<claim>/<path>`."""

    kind = "persistentVolumeClaim"

    def __init__(
        self,
        *,
        volume_root: Path | None,
        namespace: str,
        claim: str,
        path: str,
        settings: bounds.SourceSettings,
        allow_pickle: bool = True,
        on_read: Callable[[int], None],
    ) -> None:
        if volume_root is None:
            raise PathNotAllowed("this operator has no volume root: no source on a volume")
        bounds.checked_object_name(namespace, "namespace")
        bounds.checked_object_name(claim, "source.persistentVolumeClaim.claimName")
        path, self._weights = assemble.named_file(
            bounds.checked_relative_path(path, "source.persistentVolumeClaim.path")
        )
        self.uri = f"pvc://{namespace}/{claim}/{path}".rstrip("/")
        claim_root = volume_root / namespace / claim
        self._tree = VolumeTree(claim_root, path, self.uri, settings, on_read)
        self._settings = settings
        self._allow_pickle = allow_pickle

    async def resolve(self) -> ResolvedAdapter:
        """Read header and config of the files that are there now."""
        tree = await self._tree.snapshot()
        try:
            return await assemble.resolve(
                tree,
                self._settings,
                allow_pickle=self._allow_pickle,
                weights_name=self._weights,
            )
        finally:
            tree.resolved = True

    async def aclose(self) -> None:
        """Nothing is held between calls."""


class VolumeTree:
    """The files below one folder of a claim."""

    def __init__(
        self,
        claim_root: Path,
        path: str,
        uri: str,
        settings: bounds.SourceSettings,
        on_read: Callable[[int], None],
    ) -> None:
        self.uri = uri
        self.resolved = False
        """Whether reads find out from now on that a file was replaced after it was opened."""
        self._root = claim_root
        self._path = path
        self._settings = settings
        self.on_read = on_read

    async def open(self, name: str) -> VolumeBlob | None:
        """Return the file as it is now; None if it or its folder does not exist."""
        return await self.run(lambda: self._open(name))

    async def snapshot(self) -> VolumeTree:
        """Return the files of the snapshot that a Hugging Face cache's `refs/main` names.

        Any other folder is returned as it is, and so is a cache that does not say.
        """
        if await self.open(bounds.CONFIG) is not None:
            return self
        head = await self.open("refs/main")
        if head is None or head.size > _MAX_REF_BYTES:
            return self
        commit = bytes(await head.read(0, head.size)).strip()
        if not _COMMIT.fullmatch(commit):
            return self
        below = f"snapshots/{commit.decode()}"
        path = f"{self._path}/{below}" if self._path else below
        uri = f"{self.uri}/{below}"
        return VolumeTree(self._root, path, uri, self._settings, self.on_read)

    async def run(self, work: Callable[[], T]) -> T:
        """Run blocking file work in the volumes' own threads.

        A volume whose server is gone may hold its thread for ever, but not the adapter's pass.
        """
        threads = _threads(self._settings.volume_threads)
        limit = self._settings.read_timeout_s
        try:
            async with asyncio.timeout(limit):
                return await asyncio.get_running_loop().run_in_executor(threads, work)
        except TimeoutError:
            pass
        raise SourceUnavailable(f"{self.uri}: the volume does not answer for {limit:g} s")

    def _open(self, name: str) -> VolumeBlob | None:
        with ExitStack() as held:
            found = self.descend(name, name, held)
            if found is None:
                return None
            descriptor, linked = found
            state, head = _look(descriptor)
            target = _written_link(head) if state.size <= _MAX_WRITTEN_LINK else None
            if target is None:
                return VolumeBlob(self, name, name, state, head, linked=linked)
            found = self.descend(name, target, held)
            if found is None:
                raise SourceNotFound(f"{name} is a dangling link to {target} in {self.uri}")
            return VolumeBlob(self, name, target, *_look(found[0]), linked=True)

    def descend(self, name: str, route: str, held: ExitStack) -> tuple[int, bool] | None:
        """Open the file at `route`; return its descriptor and whether a link was followed.

        None if it does not exist. `name` is for messages; `held` closes all that was opened.
        """
        try:
            top = os.open(self._root, _FOLDER)
        except OSError as error:
            raise _translated(error, f"{self.uri}: the volume") from None
        held.callback(os.close, top)
        folders = [top]
        todo = [part for part in [*self._path.split("/"), *route.split("/")] if part][::-1]
        links = 0
        target: str | None = None  # of the last link
        while todo:
            part = todo.pop()
            if part in ("", "."):
                continue
            if part == "..":
                if len(folders) == 1:
                    raise PathNotAllowed(
                        f"{name} is a link to {target}, out of the volume in {self.uri}"
                    )
                folders.pop()
                continue
            try:
                opened = os.open(part, _FOLDER if todo else _FILE, dir_fd=folders[-1])
            except OSError as error:
                found = _link_target(part, folders[-1]) if _may_be_link(error) else None
                if found is None:
                    if error.errno in (errno.ENOENT, errno.ENOTDIR):
                        if target is None:
                            return None
                        raise SourceNotFound(
                            f"{name} is a dangling link to {target} in {self.uri}"
                        ) from None
                    mode = _mode(part, folders[-1])
                    raise _translated(error, f"{self.uri}/{name}", mode) from None
                links += 1
                target = found
                if target.startswith("/"):
                    raise PathNotAllowed(
                        f"{name} is a link to {target}, out of the volume in {self.uri}"
                    ) from None
                if links > _MAX_LINKS:
                    raise PathNotAllowed(
                        f"{name} passes more than {_MAX_LINKS} links in {self.uri}"
                    ) from None
                todo.extend(target.split("/")[::-1])
                continue
            held.callback(os.close, opened)
            if todo:
                folders.append(opened)
            elif not stat.S_ISREG(os.fstat(opened).st_mode):
                raise PathNotAllowed(f"{name} is not a plain file in {self.uri}")
            else:
                return opened, links > 0
        raise PathNotAllowed(f"{name} is not a plain file in {self.uri}")


@dataclass(frozen=True)
class FileState:
    """What says that a file is still the same."""

    device: int
    inode: int
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, found: os.stat_result) -> FileState:
        """Return the state that `stat` reports."""
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


class VolumeBlob:
    """One version of one file on a volume."""

    def __init__(
        self,
        tree: VolumeTree,
        name: str,
        route: str,
        state: FileState,
        head: bytes,
        *,
        linked: bool,
    ) -> None:
        self.name = name
        self.size = state.size
        self.linked = linked
        self.identity = f"{state.device}:{state.inode}:{state.size}:{state.mtime_ns}"
        seconds = min(max(state.mtime_ns // 1_000_000_000, 0), _YEAR_9999)
        written = datetime.fromtimestamp(seconds, UTC)
        self.revision = f"{written:%Y-%m-%dT%H:%M:%SZ}"
        self._tree = tree
        self._route = route
        self._state = state
        self._head = head

    async def read(self, offset: int, length: int) -> Buffer:
        """Return exactly the bytes asked for, of the version that was opened."""
        if offset + length <= len(self._head) and not self._tree.resolved:
            self._tree.on_read(length)
            return self._head[offset : offset + length]
        return await self._tree.run(lambda: self._read(offset, length))

    def _read(self, offset: int, length: int) -> Buffer:
        with ExitStack() as held:
            found = self._tree.descend(self.name, self._route, held)
            if found is None:
                raise SourceChanged(f"{self.name} is gone from {self._tree.uri}")
            descriptor, _ = found
            self._check(descriptor)
            into = bytearray(length)
            try:
                done = _fill(descriptor, offset, into)
            except OSError as error:
                raise _translated(error, f"{self._tree.uri}/{self.name}") from None
            # Again: a writer in place may have been at work during the read.
            self._check(descriptor)
        if done < length:
            raise SourceUnavailable(
                f"{self.name} gave {done} of {length} bytes at {offset} in {self._tree.uri}"
            )
        self._tree.on_read(length)
        return into

    def _check(self, descriptor: int) -> None:
        if FileState.of(os.fstat(descriptor)) != self._state:
            raise SourceChanged(f"{self.name} changed in {self._tree.uri}")


def _look(descriptor: int) -> tuple[FileState, bytes]:
    """Return a file's state and its first bytes in that state, none if it is being written."""
    state = FileState.of(os.fstat(descriptor))
    try:
        head = os.pread(descriptor, min(state.size, _HEAD_BYTES), 0)
    except OSError:  # whoever needs them will be told
        return state, b""
    return state, head if FileState.of(os.fstat(descriptor)) == state else b""


def _written_link(head: bytes) -> str | None:
    """Return the target of a Hugging Face cache's link that a copy turned into a text file."""
    found = _WRITTEN_LINK.fullmatch(head)
    return found[1].decode() if found else None


def _fill(descriptor: int, offset: int, into: bytearray) -> int:
    done = 0
    with memoryview(into) as view:
        while done < len(into):
            got = os.preadv(descriptor, [view[done:]], offset + done)
            if got == 0:
                break
            done += got
    return done


def _may_be_link(error: OSError) -> bool:
    # A link where a folder was wanted gives ENOTDIR, where a file was wanted ELOOP.
    return error.errno in (errno.ELOOP, errno.ENOTDIR)


def _link_target(part: str, folder: int) -> str | None:
    try:
        return os.readlink(part, dir_fd=folder)
    except OSError:
        return None


def _mode(part: str, folder: int) -> str:
    """Return the permissions as people write them, for a message; "" if they cannot be had."""
    try:
        found = os.stat(part, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return ""
    return f"mode {stat.S_IMODE(found.st_mode):04o}, "


def _translated(error: OSError, what: str, mode: str = "") -> SourceError:
    match error.errno:
        case errno.ENOENT | errno.ENOTDIR | errno.ENAMETOOLONG:
            return SourceNotFound(f"{what} does not exist")
        case errno.ENXIO | errno.ENODEV:  # a socket, or a device that nobody drives
            return PathNotAllowed(f"{what} is not a plain file")
        case errno.EACCES | errno.EPERM:
            uid = os.geteuid()
            return AccessDenied(f"{what} is not readable by the operator ({mode}uid {uid})")
        case _:
            return SourceUnavailable(f"{what}: {os.strerror(error.errno or errno.EIO)}")
