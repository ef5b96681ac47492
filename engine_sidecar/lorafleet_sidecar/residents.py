"""What lies in which memory, and whose it is: sums over one inventory. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from lorafleet.v1alpha1 import sidecar_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable

NAMESPACES_SHOWN: Final = 20
"""Namespaces that have sums of their own: however many there are, the labels stay few."""
OTHERS: Final = "_others"
"""In place of the rest; no namespace can be called so."""

_BEST_FIRST: Final = ((pb.TIER_GPU, "gpu"), (pb.TIER_HOST, "host"), (pb.TIER_STAGED, "staged"))


def tiers(inventory: pb.Inventory) -> Iterable[tuple[tuple[str], int]]:
    """Yield how many revisions have each tier as their best."""
    known = {each.digest for each in inventory.loaded}
    for tier, label in _BEST_FIRST:
        count = sum(each.tier == tier for each in inventory.loaded)
        if label == "staged":
            count += sum(each.digest not in known for each in inventory.staged)
        yield (label,), count


def revision_bytes(inventory: pb.Inventory) -> list[tuple[tuple[str, str], int]]:
    """Return the bytes of committed revisions by (best tier, namespace), namespaces in order.

    Of more than NAMESPACES_SHOWN those with the most bytes; the rest together are OTHERS.
    """
    best = {
        each.digest: label
        for tier, label in reversed(_BEST_FIRST)
        for each in inventory.loaded
        if each.tier == tier
    }
    sizes: Counter[tuple[str, str]] = Counter()
    totals: Counter[str] = Counter()
    for each in inventory.staged:
        namespace = each.adapter.partition("/")[0]
        sizes[best.get(each.digest, "staged"), namespace] += each.size_bytes
        totals[namespace] += each.size_bytes
    shown = {name for name, _ in totals.most_common(NAMESPACES_SHOWN)}
    found: Counter[tuple[str, str]] = Counter()
    for (tier, namespace), size in sizes.items():
        found[tier, namespace if namespace in shown else OTHERS] += size
    return sorted(found.items())


def displaced(inventory: pb.Inventory) -> int:
    """Return how many served revisions are to keep a slot and are in none."""
    return sum(
        each.pinned and each.published and each.tier != pb.TIER_GPU for each in inventory.loaded
    )
