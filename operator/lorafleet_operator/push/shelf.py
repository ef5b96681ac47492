"""One adapter's folder in the spool (layout: sources/pushed.py): what is whole in it, what it costs.

Blocks; runs in threads. A kill leaves at any point what was whole before, and beside it things that
nobody needs: `sweep` takes those away. A revision of which a file is missing or damaged is no revision.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from lorafleet.durable import sync_directory
from lorafleet.errors import SourceNotFound

from lorafleet_operator.crashpoint import crash_at
from lorafleet_operator.sources.pushed import (
    CONFIG,
    HEADER,
    PART,
    PLACES,
    Place,
    age,
    entries,
    hex_of,
    newest_first,
    packed_places,
    read_places,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from lorafleet_operator.push.revision import PushedRevision

FILE_BYTES: Final = 16 << 10
"""What a file costs beside its bytes: ext4 has an inode for each 16 KiB of a disk."""
_FILES_OF_PUSH: Final = 5  # three of the revision, its tensors, and their index while they come
_BYTES_OF_TENSOR: Final = 112  # in the file of places and in that index


def overhead(revision: PushedRevision) -> int:
    """Return what a revision costs beside its tensors, in bytes."""
    texts = len(revision.header_bytes) + len(revision.config_bytes)
    return texts + _BYTES_OF_TENSOR * len(revision.digests) + _FILES_OF_PUSH * FILE_BYTES


def cost(folder: Path, *, parts: bool) -> int:
    """Return what the adapter's files cost, with or without those of a push that goes on."""
    files = [f for f in entries(folder / "data") if parts or PART not in f.name]
    for revision in entries(folder / "revisions"):
        if parts or PART not in revision.name:
            files += entries(revision)
    return sum(map(_cost, files))


def _cost(file: Path) -> int:
    with suppress(FileNotFoundError):
        return file.stat().st_size + FILE_BYTES
    return 0


def known(folder: Path, sizes: Mapping[bytes, int]) -> dict[bytes, Place]:
    """Return where tensors of these digests and sizes lie."""
    found: dict[bytes, Place] = {}
    ends = {file.name: file.stat().st_size for file in entries(folder / "data")}
    for revision in newest_first(folder):
        with suppress(SourceNotFound):
            for place in read_places(revision):
                size = sizes.get(place.digest)
                if size is not None and place.offset + size <= ends.get(place.file, -1):
                    found.setdefault(place.digest, place)
    return found


def has(folder: Path, revision: PushedRevision) -> bool:
    """Return whether the revision is here as it was pushed; a damaged one is taken away."""
    there = folder / "revisions" / hex_of(revision.revision)
    if not there.is_dir():
        return False
    with suppress(FileNotFoundError, SourceNotFound):
        places = read_places(there)
        sizes = {d: revision.size(index) for d, index in revision.needed().items()}
        if (
            tuple(place.digest for place in places) == revision.digests
            and (there / HEADER).read_bytes() == revision.header_bytes
            and (there / CONFIG).read_bytes() == revision.config_bytes
            and known(folder, sizes).keys() == sizes.keys()
            and _fit(folder, places, sizes)
        ):
            return True
    shutil.rmtree(there, ignore_errors=True)
    return False


def _fit(folder: Path, places: list[Place], sizes: Mapping[bytes, int]) -> bool:
    ends = {file.name: file.stat().st_size for file in entries(folder / "data")}
    return all(
        p.offset + sizes[p.digest] <= ends.get(p.file, -1) for p in places if p.digest in sizes
    )


def store(folder: Path, revision: PushedRevision, places: list[Place]) -> None:
    """Give the revision its name: all its tensors lie at `places`."""
    top = folder / "revisions"
    top.mkdir(parents=True, exist_ok=True)
    name = hex_of(revision.revision)
    made = top / (name + PART)
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    for file, content in (
        (HEADER, revision.header_bytes),
        (CONFIG, revision.config_bytes),
        (PLACES, packed_places(places)),
    ):
        _written(made / file, content)
    sync_directory(made)
    crash_at("push.described")
    shutil.rmtree(top / name, ignore_errors=True)
    make_newest(made)
    made.rename(top / name)
    sync_directory(top)


def make_newest(revision: Path) -> None:
    """Order a revision behind all others of its adapter, whatever the clock says."""
    newest = max((age(each)[0] for each in newest_first(revision.parents[1])), default=0)
    at = max(time.time_ns(), newest + 1)
    os.utime(revision, ns=(at, at))


def sweep(folder: Path, *, parts: bool) -> None:
    """Delete data that no revision needs and what is no revision; with `parts` also what came of a
    push."""
    needed: set[str] = set()
    for revision in entries(folder / "revisions"):
        try:
            if PART in revision.name:
                raise SourceNotFound(revision.name)
            needed |= {place.file for place in read_places(revision)}
        except SourceNotFound:
            if parts or PART not in revision.name:
                shutil.rmtree(revision, ignore_errors=True)
    for file in entries(folder / "data"):
        if file.name not in needed and (parts or PART not in file.name):
            file.unlink(missing_ok=True)


def changed_at(folder: Path) -> float:
    """Return when something of a push came last, in seconds of the wall clock; 0 if nothing did."""
    parts = [f for f in entries(folder / "data") if PART in f.name]
    found = 0.0
    for each in (*parts, *(r for r in entries(folder / "revisions") if PART in r.name)):
        with suppress(FileNotFoundError):
            found = max(found, each.stat().st_mtime)
    return found


def _written(path: Path, content: bytes) -> None:
    """Write a file and have it on the disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
