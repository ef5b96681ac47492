"""A revision as a plain adapter directory, for engines that load files.

The pages of a second, equal range of the arena are given back to the volume and the files are
written with them, so the volume never holds more than the arena's budget.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from lorafleet.durable import sync_directory

from lorafleet_sidecar import index
from lorafleet_sidecar.paths import CONFIG, MODEL, PLAIN, REVISIONS, hex_of

if TYPE_CHECKING:
    from pathlib import Path

    from lorafleet_sidecar.allocator import Extent
    from lorafleet_sidecar.arena import Arena

_OVERHEAD = 64 << 10  # the config and the directory's own pages
_PIECE = 16 << 20


def directory(volume: Path, digest: str) -> Path:
    """Return where the plain files of `digest` are or would be."""
    return volume / PLAIN / hex_of(digest)


def size_of(revision: index.RevisionEntry) -> int:
    """Return the bytes of the volume that the plain files of `revision` take at most."""
    return revision.image_bytes + _OVERHEAD


def write(volume: Path, arena: Arena, revision: index.RevisionEntry, extent: Extent) -> Path:
    """Write the files of `revision` with the pages of `extent`; the directory appears whole."""
    target = directory(volume, revision.digest)
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    arena.punch(extent)
    partial.mkdir(mode=0o755, parents=True)
    partial.chmod(0o755)
    config = volume / REVISIONS / target.name / CONFIG
    index.write_durably(partial / CONFIG, config.read_bytes())
    start = revision.extent.offset
    with (partial / MODEL).open("wb") as file:
        for at in range(start, start + revision.image_bytes, _PIECE):
            end = min(at + _PIECE, start + revision.image_bytes)
            with arena.view[at:end] as piece:
                file.write(piece)
        os.fchmod(file.fileno(), 0o644)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(target)
    sync_directory(target.parent)
    return target


def remove(volume: Path, arena: Arena, digest: str, extent: Extent) -> None:
    """Remove the files, whole or partial, and put their pages back into the arena."""
    target = directory(volume, digest)
    for path in (target, target.with_name(f".{target.name}.partial")):
        shutil.rmtree(path, ignore_errors=True)
    arena.refill(extent)
