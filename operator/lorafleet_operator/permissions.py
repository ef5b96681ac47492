"""What an adapter may use that is another namespace's: its pool, and the name that it is served by.

Both need an AdapterGrant in that namespace. Only the owner of a namespace can write one there, so
nobody gives himself what is another's. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lorafleet_operator.api.conditions import Reason
from lorafleet_operator.api.names import owner_of
from lorafleet_operator.api.v1alpha1 import GrantedKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lorafleet_operator.world import KnownAdapter, World


def refusal(world: World, namespace: str, pool: str, served_name: str) -> tuple[Reason, str] | None:
    """Return why an adapter of `namespace` may not be served by `pool` (its key) under that name.

    None if it may. A name that begins with the name of a namespace and / belongs to it.
    """
    owner, _, name = pool.partition("/")
    if owner != namespace and not _granted(world, owner, namespace, GrantedKind.ENGINE_POOL, name):
        return Reason.NOT_GRANTED, _missing(owner, namespace, GrantedKind.ENGINE_POOL, name)
    prefix = owner_of(served_name)
    if prefix in ("", namespace) or not world.is_namespace(prefix):
        return None
    if _granted(world, prefix, namespace, GrantedKind.SERVED_NAME, served_name):
        return None
    return Reason.NOT_GRANTED, _missing(prefix, namespace, GrantedKind.SERVED_NAME, served_name)


def users(
    world: World, namespace: str, served: Iterable[tuple[str, str]]
) -> Iterator[KnownAdapter]:
    """Yield the adapters of other namespaces that use what grants of this namespace are about.

    Its pools, its names, and those of its names that engines know them by: who was renamed keeps the
    name of before while the new one is another's. served: (adapter, served name) of each engine.
    """
    prefix = f"{namespace}/"
    kept = {adapter for adapter, name in served if name.startswith(prefix)}
    for pool, adapters in world.adapters.items():
        for known in adapters:
            uses = pool.startswith(prefix) or known.served_name.startswith(prefix)
            if known.demand.namespace != namespace and (uses or known.key in kept):
                yield known


def _granted(world: World, owner: str, namespace: str, kind: GrantedKind, name: str) -> bool:
    grants = world.grants.get(owner) or ()
    return any(grant.allows(namespace, kind, name) for grant in grants)


def _missing(owner: str, namespace: str, kind: GrantedKind, name: str) -> str:
    return f"namespace {owner} holds no AdapterGrant from namespace {namespace} to {kind} {name}"
