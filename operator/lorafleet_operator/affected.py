"""Which adapters a change of an engine's inventory concerns. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from lorafleet.v1alpha1 import sidecar_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence

_E = TypeVar("_E", pb.StagedRevision, pb.LoadedAdapter)


def adapters_affected(
    old: pb.Inventory | None, new: pb.Inventory | None, *, in_contact: bool
) -> set[str] | None:
    """Return the adapters that a change of inventory concerns, None for all of the pool.

    One adapter's load must not wake ten thousand others; a new start of vLLM or a change of
    health does.
    """
    if old is None or new is None or not in_contact or old is new:
        return None
    if (old.engine_instance, old.health, old.health_message) != (
        new.engine_instance,
        new.health,
        new.health_message,
    ):
        return None
    staged, loaded = _apart(old.staged, new.staged), _apart(old.loaded, new.loaded)
    before, after = (_contents(*each) for each in zip(staged, loaded, strict=True))
    both = after | before
    return {both[key] for key in before.keys() ^ after.keys()} - {""}  # what is nobody's any more


def _apart(old: Sequence[_E], new: Sequence[_E]) -> tuple[Sequence[_E], Sequence[_E]]:
    """Return both without the entries that they begin and end with alike: all but one, mostly."""
    shorter = min(len(old), len(new))
    head = tail = 0
    while head < shorter and old[head] == new[head]:
        head += 1
    while tail < shorter - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    return old[head : len(old) - tail], new[head : len(new) - tail]


def _contents(
    staged: Sequence[pb.StagedRevision], loaded: Sequence[pb.LoadedAdapter]
) -> dict[bytes, str]:
    """Return adapters by what is worth a pass of each entry: not the counts of requests."""
    found = {b"s" + _bytes(entry): entry.adapter for entry in staged}
    for entry in loaded:
        quiet = entry
        if entry.in_flight or entry.requests or entry.idle_seconds:
            quiet = pb.LoadedAdapter()
            quiet.CopyFrom(entry)
            quiet.in_flight = quiet.requests = quiet.errors = quiet.idle_seconds = 0
        found[b"l" + _bytes(quiet)] = entry.adapter
    return found


def _bytes(entry: pb.LoadedAdapter | pb.StagedRevision) -> bytes:
    return entry.SerializeToString(deterministic=True)
