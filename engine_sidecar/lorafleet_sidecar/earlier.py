"""What leaves the arena when an adapter lets go: of its revisions, those that nobody needs any more.

The caller has told the store what the engine reads (`Agent.hold`): that is never dropped.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lorafleet_sidecar.desired import Desired, ServedName
    from lorafleet_sidecar.store import RevisionStore

log = logging.getLogger(__name__)


def free_replaced(store: RevisionStore, desired: Desired, digests: Iterable[str]) -> None:
    """Free revisions that were replaced, or are no longer kept, where their adapter says so.

    One that came with another adapter is left to the LRU.
    """
    frees = {name.adapter for name in desired.names.values() if name.free_others}
    for digest in set(digests) - desired.digests() - desired.kept():
        staged = store.find(digest)
        if staged is not None and staged.adapter in frees and store.drop(digest):
            log.info("freed %s of %s", digest[:19], staged.adapter)


def drop_staged(store: RevisionStore, desired: Desired, name: ServedName) -> None:
    """Free what the adapter of a removed name staged and nobody else needs."""
    ours = {target.digest for target in (name.current, name.coming) if target is not None}
    ours |= {each.digest for each in store.revisions() if each.adapter == name.adapter}
    others = {key: each for key, each in desired.names.items() if key != name.served_name}
    ours -= desired.digests() | {digest for each in others.values() for digest in each.keep}
    for digest in ours:
        store.drop(digest)  # keeps what the engine still reads
    desired.forgive(ours)
