"""An adapter on this machine's disk: a folder, one of its files, or a Hugging Face cache."""

from __future__ import annotations

import errno
import os
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from lorafleet.errors import AccessDenied, SourceNotFound
from lorafleet.quoting import shown

from lorafleet_operator.sources import assemble, bounds
from lorafleet_operator.sources.volume import VolumeTree

if TYPE_CHECKING:
    from lorafleet_operator.sources.base import ResolvedAdapter
    from lorafleet_operator.sources.bounds import SourceSettings


MAX_SHOWN = 300
"""Characters of a path that a message shows."""

_MAX_LOOKED_AT = 10_000
"""Entries of a folder that a better message is worth."""


class LocalSource:
    """The files of one folder, read as the operator reads a volume.

    A relative link is followed wherever it leads: the person who asks may read it anyway. An
    absolute one is refused, as it would be on a volume.
    """

    kind = "path"

    def __init__(self, path: Path, settings: SourceSettings, *, allow_pickle: bool = True) -> None:
        self.uri = shown(str(path), MAX_SHOWN)
        self._path = path
        self._settings = settings
        self._allow_pickle = allow_pickle

    async def resolve(self) -> ResolvedAdapter:
        """Read header and config of the files that are there now."""
        try:
            folder, weights = self._find()
        except OSError as error:
            if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
                raise SourceNotFound(f"{self.uri} does not exist ({error.strerror})") from None
            raise AccessDenied(f"{self.uri} is not readable ({error.strerror})") from None
        tree = VolumeTree(
            Path(folder.anchor),
            str(folder.relative_to(folder.anchor)),
            self.uri,
            self._settings,
            lambda _count: None,
        )
        return await assemble.resolve(
            tree, self._settings, allow_pickle=self._allow_pickle, weights_name=weights
        )

    async def aclose(self) -> None:
        """Nothing is held between calls."""

    def _find(self) -> tuple[Path, str]:
        """Return the folder, its own links resolved, and the name of the weights in it."""
        path = self._path
        if path.is_dir():
            folder = _snapshot(path)
            _check_config(folder)
            return folder.resolve(), assemble.WEIGHTS
        if not path.exists() and not path.is_symlink():
            raise SourceNotFound(f"{self.uri} does not exist")
        # The link is kept: its name and folder are the adapter's, the blob's are not.
        name = assemble.WEIGHTS if path.name == bounds.CONFIG else path.name
        return path.parent.resolve(), name


def _check_config(folder: Path) -> None:
    """Raise SourceNotFound if only folders below have an adapter, as a trainer's checkpoints do."""
    if os.path.lexists(folder / bounds.CONFIG):
        return
    below = [item.name for item in islice(folder.iterdir(), _MAX_LOOKED_AT)]
    found = sorted(name for name in below if (folder / name / bounds.CONFIG).is_file())
    if found:
        more = f" and {len(found) - 4} more" if len(found) > 4 else ""
        raise SourceNotFound(
            f"{bounds.CONFIG} not found in {folder}; there is one in {', '.join(found[:4])}{more}"
        )


def _snapshot(path: Path) -> Path:
    """Return the snapshot that a Hugging Face cache means; any other folder as it is."""
    if (path / bounds.CONFIG).exists() or not (path / "snapshots").is_dir():
        return path
    head = path / "refs" / "main"
    if head.is_file():
        name = head.read_text(errors="replace").strip()
        snapshot = path / "snapshots" / name
        if not name or "/" in name or not snapshot.is_dir():
            raise SourceNotFound(
                f"{shown(str(path), MAX_SHOWN)}: refs/main names the snapshot {shown(name, 80)}, "
                "which is not there"
            )
        return snapshot
    found = sorted((path / "snapshots").iterdir())
    if len(found) != 1:
        raise SourceNotFound(
            f"{shown(str(path), MAX_SHOWN)} is a Hugging Face cache with {len(found)} snapshots and no refs/main: "
            "name one of them"
        )
    return found[0]
