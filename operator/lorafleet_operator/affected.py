"""Which adapters a change of an engine's inventory concerns. Pure."""

from __future__ import annotations

from lorafleet.v1alpha1 import sidecar_pb2 as pb


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
    before, after = _contents(old), _contents(new)
    return {(before.get(key) or after[key]) for key in before.keys() ^ after.keys()}


def _contents(inventory: pb.Inventory) -> dict[bytes, str]:
    """Return adapters by what is worth a pass of each entry: not the counts of requests."""
    found = {b"s" + _bytes(entry): entry.adapter for entry in inventory.staged}
    for entry in inventory.loaded:
        quiet = entry
        if entry.in_flight or entry.requests or entry.idle_seconds:
            quiet = pb.LoadedAdapter()
            quiet.CopyFrom(entry)
            quiet.in_flight = quiet.requests = quiet.errors = quiet.idle_seconds = 0
        found[b"l" + _bytes(quiet)] = entry.adapter
    return found


def _bytes(entry: pb.LoadedAdapter | pb.StagedRevision) -> bytes:
    return entry.SerializeToString(deterministic=True)
