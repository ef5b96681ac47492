"""`lorafleet-operator check`: looks, as the operator would, at what it needs. Writes nothing.

Each step says one line; the first that fails is the last. `helm test` runs it in the operator's image
and by its account.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lorafleet.certificates import CertificateFiles, CertificatesUnusable

from lorafleet_operator.api import names
from lorafleet_operator.cluster import reads, rights, served
from lorafleet_operator.cluster.leases import Leases, own_namespace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from lorafleet_operator.settings import OperatorSettings


class CheckFailed(RuntimeError):
    """Raised for what is not as it should be; one line for people."""


async def check(settings: OperatorSettings) -> AsyncIterator[str]:
    """Yield a line for each thing that is well. Raises CheckFailed, NoCluster, NoAnswer or NotServed."""
    api = await reads.connect()
    try:
        await served.wait_until_served(api, 0.0)
        yield f"resources: {names.API_VERSION} is served with every field that this version needs"
        for namespace in settings.namespaces or ("",):
            await rights.list_each(api, namespace)
        where = ", ".join(settings.namespaces) or "every namespace"
        yield f"rights: may list what it watches in {where}"
        if settings.tls_dir is not None:
            yield f"certificates: {_certificates(settings.tls_dir)}"
    finally:
        await api.close()
    namespace = settings.lease_namespace or own_namespace()
    if namespace:
        holders = await _holders(settings, namespace)
        yield f"operator: {', '.join(holders)} acts for the pools"


def _certificates(folder: Path) -> str:
    try:
        found = CertificateFiles(folder).current()
    except CertificatesUnusable as error:
        raise CheckFailed(f"certificates: in {folder}: {error}") from None
    until = datetime.fromtimestamp(found.expires_at, UTC)
    if until <= datetime.now(UTC):
        raise CheckFailed(f"certificates: tls.crt in {folder} expired on {until:%Y-%m-%d}")
    return f"tls.crt is good until {until:%Y-%m-%d}"


async def _holders(settings: OperatorSettings, namespace: str) -> list[str]:
    """Return who holds the leases, each of which was seen to be renewed."""
    leases = Leases(namespace, settings.lease_name, settings.lease_seconds)
    try:
        before = {each.shard: each.version for each in await leases.all()}
        for _ in range(2 * settings.lease_seconds + 1):
            await asyncio.sleep(1.0)
            found = await leases.all()
            renewed = {
                each.shard: each.holder
                for each in found
                if each.holder and each.version != before.get(each.shard)
            }
            if len(renewed) == settings.shards:
                return sorted(set(renewed.values()))
    finally:
        await leases.close()
    idle = sorted(set(range(settings.shards)) - renewed.keys())
    raise CheckFailed(
        f"operator: nobody acts for {len(idle)} of {settings.shards} shards: lease "
        f"{namespace}/{settings.lease_name}-{idle[0]} was not renewed"
    )
