"""The index: what lies where in the arena, in one small file that is replaced as a whole.

Everything that must change together (a reservation that becomes a revision, a revision whose
space goes to a reservation) changes in one rename, so a kill at any point leaves the old or
the new state and nothing between.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from lorafleet.durable import sync_directory

from lorafleet_sidecar.allocator import Allocator, Extent

if TYPE_CHECKING:
    from pathlib import Path

NAME = "index.json"
FORMAT = 1
log = logging.getLogger(__name__)


@dataclass
class RevisionEntry:
    """A committed revision. Equal content from several sources has several `sources`."""

    digest: str
    extent: Extent
    image_bytes: int  # of the safetensors file at the extent's start
    rank: int
    adapter: str
    notes: tuple[str, ...]
    sources: dict[str, str]  # fingerprint -> key of the layout that it was staged with
    used: int = 0  # of the store's use counter: the smallest is evicted first


@dataclass
class StagingEntry:
    """A reservation; the rest of the transfer's state lies in `staging/<staging_id>/`."""

    staging_id: str
    fingerprint: str
    extent: Extent


@dataclass
class PlainEntry:
    """The range of the arena whose pages are lent to `plain/<hex>/`."""

    digest: str
    extent: Extent


@dataclass
class IndexState:
    """All that the index says. Quarantine: see `store.RevisionStore.open`."""

    revisions: dict[str, RevisionEntry] = field(default_factory=dict)  # by digest
    stagings: dict[str, StagingEntry] = field(default_factory=dict)  # by staging id
    plain: dict[str, PlainEntry] = field(default_factory=dict)  # by digest
    quarantine: dict[str, Extent] = field(default_factory=dict)  # by digest
    published: Any = None
    uses: int = 0

    def extents(self) -> list[Extent]:
        """Return every taken extent, in no order."""
        return [
            *(entry.extent for entry in self.revisions.values()),
            *(entry.extent for entry in self.stagings.values()),
            *(entry.extent for entry in self.plain.values()),
            *self.quarantine.values(),
        ]


class IndexDamaged(ValueError):
    """Raised by `parse` for a text that no `serialise` wrote."""


def serialise(state: IndexState) -> bytes:
    """Return the file's content: the state and the SHA-256 of its canonical JSON."""
    body = {
        "format": FORMAT,
        "revisions": [asdict(entry) for entry in state.revisions.values()],
        "stagings": [asdict(entry) for entry in state.stagings.values()],
        "plain": [asdict(entry) for entry in state.plain.values()],
        "quarantine": [
            {"digest": digest, "extent": asdict(extent)}
            for digest, extent in state.quarantine.items()
        ],
        "published": state.published,
        "uses": state.uses,
    }
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    checksum = hashlib.sha256(text.encode()).hexdigest()
    return f'{{"checksum":"{checksum}","state":{text}}}'.encode()


def parse(content: bytes, limit: int) -> IndexState:
    """Return the state in `content`, whose extents must lie apart within `limit` bytes.

    Raises `IndexDamaged` with the reason.
    """
    try:
        outer = json.loads(content)
        body = outer["state"]
        text = json.dumps(body, sort_keys=True, separators=(",", ":"))
        if hashlib.sha256(text.encode()).hexdigest() != outer["checksum"]:
            raise IndexDamaged("its checksum is wrong")
        if body["format"] != FORMAT:
            raise IndexDamaged(f"its format is {body['format']}, this program knows {FORMAT}")
        state = IndexState(
            revisions={
                raw["digest"]: RevisionEntry(
                    **{**raw, "extent": Extent(**raw["extent"]), "notes": tuple(raw["notes"])}
                )
                for raw in body["revisions"]
            },
            stagings={
                raw["staging_id"]: StagingEntry(**{**raw, "extent": Extent(**raw["extent"])})
                for raw in body["stagings"]
            },
            plain={
                raw["digest"]: PlainEntry(raw["digest"], Extent(**raw["extent"]))
                for raw in body["plain"]
            },
            quarantine={raw["digest"]: Extent(**raw["extent"]) for raw in body["quarantine"]},
            published=body["published"],
            uses=body["uses"],
        )
        Allocator(limit, state.extents())  # refuses extents that overlap or stick out
    except IndexDamaged:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise IndexDamaged(f"it cannot be read ({type(error).__name__}: {error})") from error
    return state


def load(volume: Path, limit: int) -> IndexState | None:
    """Return the volume's state, an empty one for a new volume, None for a damaged index.

    A damaged file gives one warning and is moved aside to `index.json.damaged`.
    """
    path = volume / NAME
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return IndexState()
    try:
        return parse(content, limit)
    except IndexDamaged as error:
        log.warning("%s is damaged: %s; starting with an empty arena", path, error)
        path.replace(path.with_suffix(".json.damaged"))
        return None


def replace(volume: Path, state: IndexState) -> None:
    """Put `state` in place of the volume's index, durable on return."""
    write_durably(volume / NAME, serialise(state))


def write_durably(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a file so that `path` has all of `content` or its old content, never a part."""
    temporary = path.with_name(f".{path.name}.partial")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fchmod(descriptor, mode)  # whatever the umask: the engine may be another user
        os.fsync(descriptor)
    temporary.replace(path)
    sync_directory(path.parent)
