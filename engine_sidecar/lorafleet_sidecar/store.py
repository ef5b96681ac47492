"""The facade over the arena that the agent and the service use.

All methods belong to the event loop's thread; those that move many bytes are coroutines and do
it in worker threads. Everything that must outlive this process is in the index before a method
returns.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lorafleet_sidecar.changes import Changes


@dataclass(frozen=True)
class StagedRevisionInfo:
    """One committed revision; the fields of `StagedRevision` on the wire."""

    digest: str  # "sha256:<hex>"
    fingerprint: str  # of the source that brought it first
    size_bytes: int  # of its extent, 2 MiB aligned
    rank: int
    adapter: str
    notes: tuple[str, ...]
    in_use: bool  # held: the engine may read it


@dataclass(frozen=True)
class ArenaUsageInfo:
    """Bytes of the arena: `used + reserved + free == limit`, `in_use <= used`."""

    limit: int
    used: int  # committed extents and plain exports
    reserved: int  # stagings in progress or waiting for their resume
    in_use: int  # held extents and plain exports
    largest_free: int


class RevisionStore:
    """Committed revisions of one volume, and the arena they lie in."""

    changes: Changes  # notified after each change of revisions, usage or stagings

    @classmethod
    def open(cls, volume: Path, limit_bytes: int, *, staging_ttl_seconds: float = 900.0) -> Self:
        """Open or make the volume's arena and index; heals whatever a kill left behind.

        A damaged index gives one warning and an empty store. Raises `ArenaError` if the volume
        cannot hold `limit_bytes` or holds an arena of another size.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Unmap the arena. Nothing is lost: a later `open` continues."""
        raise NotImplementedError

    def revisions(self) -> list[StagedRevisionInfo]:
        """Return what is committed, least recently used first."""
        raise NotImplementedError

    def find(self, digest: str) -> StagedRevisionInfo | None:
        """Return the committed revision of `digest`, if there is one."""
        raise NotImplementedError

    def revision_dir(self, digest: str) -> Path:
        """Return `revisions/<hex>`. Raises KeyError for a digest that is not committed."""
        raise NotImplementedError

    def usage(self) -> ArenaUsageInfo:
        """Return the exact accounting of the arena."""
        raise NotImplementedError

    def set_holds(self, digests: Iterable[str]) -> None:
        """Say which revisions the engine may read: all others may be evicted from now on.

        Until the first call every revision counts as held, for a sidecar that has just started
        does not know what the engine reads. Unknown digests are remembered.
        """
        raise NotImplementedError

    def hold(self, digest: str) -> None:
        """Add one hold, and mark the revision as used now. Raises KeyError if not committed."""
        raise NotImplementedError

    def release(self, digest: str) -> None:
        """Take one hold away; the revision stays until its space is wanted."""
        raise NotImplementedError

    def drop(self, digest: str) -> bool:
        """Free a revision. False if it is not there; raises StagingBusy while it is held."""
        raise NotImplementedError

    async def export_plain(self, digest: str) -> Path:
        """Return `plain/<hex>`, a plain adapter directory, and hold the revision meanwhile.

        The space comes out of the arena's budget. Raises KeyError, StagingFull.
        """
        raise NotImplementedError

    async def release_plain(self, digest: str) -> None:
        """Remove `plain/<hex>` and give its space back to the arena; no-op when absent."""
        raise NotImplementedError

    @property
    def published(self) -> Any:
        """The JSON value last given to `set_published`; None at first."""
        raise NotImplementedError

    def set_published(self, table: Any) -> None:
        """Keep an opaque JSON value of the agent in the index, durable on return."""
        raise NotImplementedError
