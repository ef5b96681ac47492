"""Which engines have which adapters: looked up by adapter, told by engine.

A pass asks about one adapter, an inventory tells of one engine; without this a pass would read the
inventories of the whole fleet.
"""

from __future__ import annotations

from collections import defaultdict
from sys import intern
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from lorafleet.v1alpha1 import sidecar_pb2 as pb

_NONE: frozenset[str] = frozenset()


class Holders:
    """Engines (pod UIDs) by adapter, as of each engine's last inventory."""

    def __init__(self) -> None:
        self._loaded = _Index()
        self._staged = _Index()

    def note(self, uid: str, inventory: pb.Inventory) -> None:
        """Take an engine's newest inventory."""
        # Interned: each inventory brings its own copies of names that are known already.
        self._loaded.note(uid, {intern(entry.adapter) for entry in inventory.loaded})
        self._staged.note(uid, {intern(entry.adapter) for entry in inventory.staged})

    def forget(self, uid: str) -> None:
        """Forget an engine."""
        for index in (self._loaded, self._staged):
            index.note(uid, set())

    def keep(self, uids: AbstractSet[str]) -> None:
        """Forget every engine but these."""
        for index in (self._loaded, self._staged):
            for uid in index.engines() - uids:
                index.note(uid, set())

    def with_others_than(self, adapters: AbstractSet[str]) -> set[str]:
        """Return the engines that have an adapter loaded which is none of these."""
        others = self._loaded.adapters() - adapters
        return set().union(*(self._loaded.of(each) for each in others))

    def loaded_on(self, adapter: str) -> AbstractSet[str]:
        """Return the engines that have the adapter loaded, whatever the served name."""
        return self._loaded.of(adapter)

    def staged_on(self, adapter: str) -> AbstractSet[str]:
        """Return the engines with a revision in the arena that the adapter brought there."""
        return self._staged.of(adapter)


class _Index:
    """A many-to-many relation that is written from one side and read from the other."""

    def __init__(self) -> None:
        self._adapters: dict[str, set[str]] = {}
        self._engines: defaultdict[str, set[str]] = defaultdict(set)

    def engines(self) -> AbstractSet[str]:
        return self._adapters.keys()

    def adapters(self) -> AbstractSet[str]:
        return self._engines.keys()

    def of(self, adapter: str) -> AbstractSet[str]:
        return self._engines.get(adapter, _NONE)

    def note(self, uid: str, adapters: set[str]) -> None:
        before = self._adapters.pop(uid, set())
        if adapters:
            self._adapters[uid] = adapters
        for adapter in adapters - before:
            self._engines[adapter].add(uid)
        for adapter in before - adapters:
            self._engines[adapter].discard(uid)
            if not self._engines[adapter]:
                del self._engines[adapter]
