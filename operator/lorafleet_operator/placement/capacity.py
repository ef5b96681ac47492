"""Whether an engine has room for one more adapter beside what the plan has put there."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from .filters import mebibytes

if TYPE_CHECKING:
    from .demands import AdapterDemand
    from .engines import EngineSnapshot
    from .load import Load
    from .tenancy import Shares, TenantRule


class Shortage(StrEnum):
    """What an engine has too little of."""

    COUNT = "adapters"
    SLOTS = "slots"
    PLACES = "places"
    BYTES = "bytes"
    PIECE = "piece"
    TENANT_BYTES = "bytes of its tenant"
    TENANT_PINNED = "pinned bytes of its tenant"
    TENANT_SLOTS = "slots of its tenant"


QUOTAS: Final = frozenset({Shortage.TENANT_BYTES, Shortage.TENANT_PINNED, Shortage.TENANT_SLOTS})
"""What only the adapter's own tenant has used up."""


def shortage(
    adapter: AdapterDemand,
    engine: EngineSnapshot,
    load: Load,
    shares: Shares | None = None,
    *,
    held: bool,
) -> Shortage | None:
    """Return what `engine`, with `load` on it already, lacks for one more adapter.

    Slots and places in host memory are no limit for adapters that share them: the engine's LRU
    lets more take turns. One of each stays free of those that do not share, or no other adapter
    could ever be activated. What `shares` keep for other tenants is taken. `held`: the engine has
    the adapter already, or is receiving it, so that its piece of the arena is taken.
    """
    size = adapter.size_bytes or 0
    kept_bytes, kept_slots = shares.kept_from(adapter.tenant) if shares else (0, 0)
    if size > engine.capacity_bytes - load.size_bytes - kept_bytes:
        return Shortage.BYTES
    if engine.max_adapters is not None and load.adapters >= engine.max_adapters:
        return Shortage.COUNT
    if adapter.reserved:
        if adapter.pinned and load.pinned + kept_slots >= engine.max_loras - 1:
            return Shortage.SLOTS
        if engine.max_cpu_loras and load.reserved + kept_slots >= engine.max_cpu_loras - 1:
            return Shortage.PLACES
    if not held and size > engine.largest_piece_bytes:
        return Shortage.PIECE
    return None


def quota_shortage(adapter: AdapterDemand, rule: TenantRule, own: Load) -> Shortage | None:
    """Return what the tenant's quota lacks for one more adapter beside its `own` on one engine."""
    size = adapter.size_bytes or 0
    if rule.staged_bytes is not None and own.size_bytes + size > rule.staged_bytes:
        return Shortage.TENANT_BYTES
    if adapter.pinned:
        if rule.slots is not None and own.pinned >= rule.slots:
            return Shortage.TENANT_SLOTS
        if rule.pinned_bytes is not None and own.pinned_bytes + size > rule.pinned_bytes:
            return Shortage.TENANT_PINNED
    return None


def shortage_text(
    lacking: Shortage,
    adapter: AdapterDemand,
    engine: EngineSnapshot,
    load: Load,
    shares: Shares | None = None,
) -> str:
    """Return the line that says what was needed and what there is."""
    size = mebibytes(adapter.size_bytes or 0)
    kept_bytes, kept_slots = shares.kept_from(adapter.tenant) if shares else (0, 0)
    match lacking:
        case Shortage.COUNT:
            return f"has {load.adapters} of {engine.max_adapters} adapters"
        case Shortage.SLOTS:
            return (
                f"has {load.pinned} pinned adapters for {engine.max_loras} GPU slots,"
                f" one stays free{_kept_slots(kept_slots)}"
            )
        case Shortage.PLACES:
            return (
                f"has {load.reserved} adapters that keep their place for {engine.max_cpu_loras}"
                f" (max_cpu_loras), one stays free{_kept_slots(kept_slots)}"
            )
        case Shortage.PIECE:
            largest = mebibytes(engine.arena_largest_free_bytes)
            return f"needs {size} in one piece, the largest free one has {largest}"
        case _:
            free = mebibytes(max(engine.capacity_bytes - load.size_bytes - kept_bytes, 0))
            kept = f", {mebibytes(kept_bytes)} are kept for other tenants" if kept_bytes else ""
            return f"needs {size}, {free} of {mebibytes(engine.capacity_bytes)} are free{kept}"


def quota_text(lacking: Shortage, adapter: AdapterDemand, rule: TenantRule, own: Load) -> str:
    """Return the line that says what the tenant has of its quota."""
    tenant, size = name_of(adapter.tenant), mebibytes(adapter.size_bytes or 0)
    if lacking is Shortage.TENANT_SLOTS:
        return f"tenant {tenant} has {own.pinned} of {rule.slots} pinned adapters here"
    pinned = lacking is Shortage.TENANT_PINNED
    limit = (rule.pinned_bytes if pinned else rule.staged_bytes) or 0
    word, has = ("pinned ", own.pinned_bytes) if pinned else ("", own.size_bytes)
    return (
        f"tenant {tenant} has {mebibytes(has)} of {mebibytes(limit)} {word}here, needs {size} more"
    )


def name_of(tenant: str) -> str:
    """Return what people call the tenant: a namespace of no tenant is named by itself."""
    return tenant.removeprefix("/")


def _kept_slots(slots: int) -> str:
    return f", {slots} are kept for other tenants" if slots else ""
