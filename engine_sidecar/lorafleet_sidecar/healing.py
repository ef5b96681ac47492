"""Start of a sidecar: makes the volume's directories agree with its index after any kill.

The index decides. Directories that it does not name are leftovers of a step that did not reach
it; entries whose directories are missing or unreadable are dropped with a warning.
"""

from __future__ import annotations

import json
import logging
import shutil
from typing import TYPE_CHECKING

from lorafleet_sidecar import index
from lorafleet_sidecar.allocator import Allocator, Extent, aligned
from lorafleet_sidecar.paths import CONFIG, MODEL, PLAIN, REVISION, REVISIONS, STAGING, hex_of
from lorafleet_sidecar.staging_dir import StagingDirectory

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

log = logging.getLogger(__name__)


def heal(volume: Path, limit: int) -> index.IndexState:
    """Return the volume's state, saved, with its directories brought in line."""
    for name in (STAGING, REVISIONS, PLAIN):
        (volume / name).mkdir(parents=True, exist_ok=True)
        (volume / name).chmod(0o755)
    state = index.load(volume, limit)
    if state is None:
        state = index.IndexState(quarantine=_quarantine(volume, limit))
    for digest in [d for d in state.revisions if not _has_files(volume, d)]:
        log.warning("revision %s has lost its files; it must be staged again", digest)
        del state.revisions[digest]
    for staging_id in list(state.stagings):
        if not StagingDirectory.is_whole(volume, state.stagings[staging_id]):
            log.warning("staging %s has lost its files; it starts again", staging_id)
            del state.stagings[staging_id]
        else:
            _shut(volume, staging_id)
    for digest in [d for d in state.plain if not _is_exported(volume, d)]:
        del state.plain[digest]  # a kill during the export; its range is allocated again
    revisions = {hex_of(digest) for digest in (*state.revisions, *state.quarantine)}
    _remove_others(volume / REVISIONS, revisions)
    _remove_others(volume / STAGING, state.stagings)
    _remove_others(volume / PLAIN, {hex_of(digest) for digest in state.plain})
    index.replace(volume, state)
    return state


def _has_files(volume: Path, digest: str) -> bool:
    directory = volume / REVISIONS / hex_of(digest)
    return (directory / CONFIG).is_file() and (directory / REVISION).is_file()


def _shut(volume: Path, staging_id: str) -> None:
    gate = StagingDirectory.find(volume, staging_id).gate()
    try:
        gate.shut()  # a receiver of a killed sidecar may still be dying
    finally:
        gate.close()


def _is_exported(volume: Path, digest: str) -> bool:
    directory = volume / PLAIN / hex_of(digest)
    return (directory / CONFIG).is_file() and (directory / MODEL).is_file()


def _remove_others(directory: Path, names: Iterable[str]) -> None:
    known = set(names)
    for path in directory.iterdir():
        if path.name not in known:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _quarantine(volume: Path, limit: int) -> dict[str, Extent]:
    """Return the ranges that revision files name: a running engine may still read them."""
    room = Allocator(limit)
    found = {}
    for path in sorted((volume / REVISIONS).glob("*/" + REVISION)):
        try:
            raw = json.loads(path.read_bytes())
            extent = Extent(raw["extent_offset"], aligned(raw["extent_bytes"]))
            if hex_of(raw["digest"]) != path.parent.name:
                continue
            room.take(extent)
        except (ValueError, KeyError, TypeError):
            continue  # half written: no engine was told of it
        found[raw["digest"]] = extent
    return found
