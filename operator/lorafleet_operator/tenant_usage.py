"""What each tenant of a pool has beside what it may have, as the pool's plan counts it."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from lorafleet_operator.api.names import MAX_STATUS_TENANTS
from lorafleet_operator.api.tenants import EVERYBODY, TenantUsage
from lorafleet_operator.placement import name_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from lorafleet_operator.placement import Planner, TenantRule


def tenant_usage(
    plan: Planner, throttled: Callable[[str], bool] = lambda _: False
) -> list[TenantUsage]:
    """Return the tenants that have adapters in a settled plan, those nearest to a limit first.

    throttled: whether loads of the tenant wait for its rate. A namespace that no entry selects has
    no limits and is left out.
    """
    loads = defaultdict(list)
    for carrier in plan.board.carriers.values():
        for tenant, load in carrier.shares.loads.items() if carrier.shares is not None else ():
            loads[tenant].append(load)
    found = []
    for tenant, here in loads.items():
        rule = plan.board.tenancy.rule(tenant)
        if rule is None:
            continue
        kept_slots, kept_bytes = _kept(plan, rule)
        found.append(
            TenantUsage(
                name=rule.name,
                namespace=name_of(tenant) if rule.name == EVERYBODY else None,
                adapters=plan.books.placed[tenant],
                adapters_quota=rule.adapters,
                staged_bytes=max(load.size_bytes for load in here),
                staged_bytes_quota=rule.staged_bytes,
                pinned_bytes=max(load.pinned_bytes for load in here),
                pinned_bytes_quota=rule.pinned_bytes,
                slots=max(load.pinned for load in here),
                slots_quota=rule.slots,
                guaranteed_slots=kept_slots,
                guaranteed_bytes=kept_bytes,
                throttled=throttled(tenant),
            )
        )
    found.sort(
        key=lambda usage: (
            not usage.throttled,
            -_nearness(usage),
            usage.name,
            usage.namespace or "",
        )
    )
    return found[:MAX_STATUS_TENANTS]


def _kept(plan: Planner, rule: TenantRule) -> tuple[int, int]:
    """Return the slots and bytes that every engine keeps for a tenant: the least of all engines."""
    if not rule.guarantees:
        return 0, 0
    tenancy = plan.board.tenancy
    kept = [tenancy.kept(carrier.engine)[rule.name] for carrier in plan.board.carriers.values()]
    return min(each.slots for each in kept), min(each.size_bytes for each in kept)


def _nearness(usage: TenantUsage) -> float:
    """Return the share of its quota that the tenant has of what it has most of."""
    pairs = (
        (usage.adapters, usage.adapters_quota),
        (usage.staged_bytes, usage.staged_bytes_quota),
        (usage.pinned_bytes, usage.pinned_bytes_quota),
        (usage.slots, usage.slots_quota),
    )
    return max(used / max(quota, 1) if quota is not None else 0.0 for used, quota in pairs)
