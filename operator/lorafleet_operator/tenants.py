"""The tenants of a pool, as planning takes them: whose a namespace is, by the pool's spec."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lorafleet_operator.api.quantity import to_bytes
from lorafleet_operator.api.tenants import EVERYBODY, percent_of
from lorafleet_operator.placement import Tenancy, TenantRule

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lorafleet_operator.api.tenants import Tenant
    from lorafleet_operator.api.v1alpha1 import EnginePoolSpec

_NAME_LABEL: Final = "kubernetes.io/metadata.name"
"""The label that the API server gives every namespace: known without reading any."""


def tenancy_of(
    spec: EnginePoolSpec, labels_of: Callable[[str], Mapping[str, str] | None]
) -> Tenancy:
    """Return the pool's tenants. labels_of: the labels of a namespace, None if nobody knows them."""
    rules = {tenant.name: _rule(tenant) for tenant in spec.tenants}

    def rule_of(namespace: str) -> TenantRule | None:
        labels = {**(labels_of(namespace) or {}), _NAME_LABEL: namespace}
        for tenant in spec.tenants:
            selector = tenant.namespace_selector
            if selector is not None and selector.selects(namespace, labels):
                return rules[tenant.name]
        return rules.get(EVERYBODY)

    return Tenancy(tuple(rules.values()), rule_of)


def _rule(tenant: Tenant) -> TenantRule:
    quota, guarantee = tenant.quota, tenant.guarantee
    share = guarantee.arena_share if guarantee is not None else None
    percent = None if share is None else percent_of(share)
    return TenantRule(
        name=tenant.name,
        adapters=quota.adapters,
        staged_bytes=_bytes(quota.staged_bytes),
        pinned_bytes=_bytes(quota.pinned_bytes),
        slots=quota.slots,
        guaranteed_slots=guarantee.slots if guarantee is not None else 0,
        guaranteed_bytes=0 if share is None or percent is not None else to_bytes(share),
        guaranteed_percent=percent or 0,
        loads_per_minute=quota.loads_per_minute,
        transfer_rate=_bytes(quota.transfer_bytes_per_second),
    )


def _bytes(quantity: str | int | None) -> int | None:
    return None if quantity is None else to_bytes(quantity)
