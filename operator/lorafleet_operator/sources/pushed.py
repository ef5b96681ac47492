"""What trainers have pushed, as the operator keeps it on disk (push/spool.py writes it).

    <root>/<namespace>/<name>/revisions/<hex>/header.json, adapter_config.json, places
    <root>/<namespace>/<name>/data/<hex>

A revision names its tensors' places: a push brings only the tensors that changed, into a file of
its own, and the others lie where an earlier push brought them. Nothing is ever changed in place.
"""

from __future__ import annotations

import asyncio
import os
import struct
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from typing import IO, TYPE_CHECKING, Final, NamedTuple

from lorafleet.errors import PathNotAllowed, SourceNotFound, SourceUnavailable
from lorafleet.header import parse_header
from lorafleet.uninterrupted import uninterrupted

from lorafleet_operator.sources.base import Buffer, ResolvedAdapter, Segment
from lorafleet_operator.sources.bounds import checked_object_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from lorafleet.header import SafetensorsHeader

HEADER: Final = "header.json"
CONFIG: Final = "adapter_config.json"
PLACES: Final = "places"
PART: Final = ".part"
"""In the names of what a push is still bringing."""
_PLACE: Final = struct.Struct("<32s32sQ")
_PREFIX: Final = "sha256:"


class Place(NamedTuple):
    """Where one tensor's bytes lie, in the order of the header's offsets."""

    digest: bytes
    """SHA-256 of the bytes."""
    file: str
    """Name of a file in `data`."""
    offset: int
    """In bytes."""


def adapter_folder(root: Path, namespace: str, name: str) -> Path:
    """Return where an adapter's pushed revisions are."""
    checked_object_name(namespace, "namespace")
    return root / namespace / checked_object_name(name, "name")


def hex_of(revision: str) -> str:
    """Return the name of the revision's folder."""
    found = revision.removeprefix(_PREFIX)
    if len(found) != 64 or not set(found) <= set("0123456789abcdef"):
        raise PathNotAllowed(f"{revision!r} is no revision, expected sha256:<64 hex digits>")
    return found


@uninterrupted()
def read_places(folder: Path) -> list[Place]:
    """Return the places of a revision's tensors. Raises SourceNotFound when they are not whole."""
    try:
        packed = (folder / PLACES).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise SourceNotFound(f"{folder.name} is not here any more") from None
    if len(packed) % _PLACE.size:
        raise SourceNotFound(f"{folder.name} is damaged on disk")
    rows = list(_PLACE.iter_unpack(packed))
    names = {file: file.hex() for file in {file for _, file, _ in rows}}
    return [Place(digest, names[file], at) for digest, file, at in rows]


def packed_places(places: list[Place]) -> bytes:
    """Return the content of a revision's file of places."""
    return b"".join(_PLACE.pack(p.digest, bytes.fromhex(p.file), p.offset) for p in places)


def newest_first(folder: Path) -> list[Path]:
    """Return the adapter's revisions."""
    found = [each for each in entries(folder / "revisions") if PART not in each.name]
    return sorted(found, key=age, reverse=True)


def age(revision: Path) -> tuple[int, str]:
    """Return what orders revisions, older ones first."""
    try:
        return revision.stat().st_mtime_ns, revision.name
    except FileNotFoundError:
        return 0, revision.name


def entries(folder: Path) -> list[Path]:
    """Return what is in a folder, nothing if it is not there."""
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


@lru_cache(maxsize=1)
def threads() -> ThreadPoolExecutor:
    """Return the threads that read and write what was pushed: disks must not stop the event loop."""
    return ThreadPoolExecutor(4, thread_name_prefix="pushed")


class PushedSource:
    """One revision that a trainer pushed."""

    kind = "push"

    def __init__(
        self,
        *,
        root: Path | None,
        namespace: str,
        name: str,
        revision: str,
        on_read: Callable[[int], None],
    ) -> None:
        if root is None:
            raise PathNotAllowed("this operator takes no pushes: it has no folder for them")
        self.uri = f"push://{namespace}/{name}"
        self._folder = adapter_folder(root, namespace, name)
        self._revision = revision
        self._on_read = on_read

    async def resolve(self) -> ResolvedAdapter:
        """Return the revision. Raises SourceNotFound when this operator has it no more."""
        if not self._revision:
            raise SourceNotFound(f"nothing has been pushed to {self.uri} yet")
        return await asyncio.get_running_loop().run_in_executor(threads(), self._read)

    async def aclose(self) -> None:
        """Nothing is held between calls."""

    @uninterrupted()
    def _read(self) -> ResolvedAdapter:
        folder = self._folder / "revisions" / hex_of(self._revision)
        try:
            header_bytes = (folder / HEADER).read_bytes()
            config_bytes = (folder / CONFIG).read_bytes()
            places = read_places(folder)
        except FileNotFoundError:
            raise SourceNotFound(
                f"{self._revision} of {self.uri} is not here any more: push it again"
            ) from None
        except SourceNotFound as error:
            raise SourceNotFound(f"{self.uri}: {error}: push it again") from None
        return self._content(header_bytes, config_bytes, places)

    def _content(
        self, header_bytes: bytes, config_bytes: bytes, places: list[Place]
    ) -> ResolvedAdapter:
        header = parse_header(header_bytes)
        if len(places) != len(header.tensors):
            raise SourceNotFound(f"{self._revision} of {self.uri} is damaged: push it again")
        blobs = {file: self._blob(file) for file in {place.file for place in places}}
        return ResolvedAdapter(
            fingerprint=self._revision,
            header_bytes=header_bytes,
            config_bytes=config_bytes,
            data_bytes=header.data_bytes,
            revision=self._revision,
            uri=self.uri,
            segments=_segments(header, places, blobs),
            tensor_digests=tuple(place.digest for place in places),
            cut_before=_borders(places, self._earlier()),
        )

    def _blob(self, file: str) -> PushedBlob:
        return PushedBlob(self._folder / "data" / file, self.uri, self._on_read)

    def _earlier(self) -> list[Place]:
        """Return the places of the newest other revision, which engines have if all goes well."""
        for other in newest_first(self._folder):
            if other.name != hex_of(self._revision):
                with suppress(SourceNotFound):
                    return read_places(other)
        return []


def _segments(
    header: SafetensorsHeader, places: list[Place], blobs: Mapping[str, PushedBlob]
) -> tuple[Segment, ...]:
    """Return where the data lies: tensors that lie one after another are read as one."""
    runs: list[tuple[int, str, int]] = []  # as a segment begins
    following = "", 0
    for tensor, (_, file, offset) in zip(header.tensors, places, strict=True):
        size = tensor.end - tensor.begin
        if size and (file, offset) != following:
            runs.append((tensor.begin, file, offset))
        if size:
            following = file, offset + size
    borders = [*(start for start, _, _ in runs), header.data_bytes]
    return tuple(
        Segment(start, end - start, blobs[file], offset)
        for (start, file, offset), end in zip(runs, borders[1:], strict=True)
    )


def _borders(places: list[Place], earlier: list[Place]) -> tuple[int, ...]:
    """Return where tensors that have changed begin and end; none between two of other shapes."""
    if len(earlier) != len(places):
        return ()
    new = [now.digest != then.digest for now, then in zip(places, earlier, strict=True)]
    return tuple(index for index in range(1, len(new)) if new[index] != new[index - 1])


class PushedBlob:
    """What one push brought; never changed."""

    linked = False

    def __init__(self, path: Path, uri: str, on_read: Callable[[int], None]) -> None:
        self.name = path.name
        self.identity = self.revision = path.name
        self._path = path
        self._uri = uri
        self._on_read = on_read

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self._path.stat().st_size

    async def read(self, offset: int, length: int) -> Buffer:
        """Return exactly the bytes asked for."""
        return await asyncio.get_running_loop().run_in_executor(
            threads(), self._read, offset, length
        )

    def _read(self, offset: int, length: int) -> Buffer:
        into = bytearray(length)
        try:
            with self._open() as file:
                done = 0
                while done < length:
                    got = os.preadv(file.fileno(), [memoryview(into)[done:]], offset + done)
                    if not got:
                        break
                    done += got
        except FileNotFoundError:
            raise SourceNotFound(f"{self.name} of {self._uri} is not here any more") from None
        except OSError as error:
            raise SourceUnavailable(f"{self._uri}: {error.strerror or error}") from None
        if done < length:
            raise SourceUnavailable(f"{self._uri}: {self.name} gave {done} of {length} bytes")
        self._on_read(length)
        return into

    def _open(self) -> AbstractContextManager[IO[bytes]]:
        return self._path.open("rb", buffering=0)
