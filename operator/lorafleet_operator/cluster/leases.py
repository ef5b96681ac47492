"""The leases at the API server (coordination.k8s.io/v1), one for each shard, as records.

Not the library's own leader election: its locks write over each other's versions at a release,
compare wall clocks, and tell their holder nothing of when the lease will be over.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kubernetes.aio import client

from lorafleet_operator.api import names
from lorafleet_operator.cluster.requests import ask, one_line, path, send
from lorafleet_operator.lease import Record

if TYPE_CHECKING:
    from collections.abc import Iterator

_LEASES: Final = ("coordination.k8s.io", "v1", "leases")
LABEL: Final = f"{names.GROUP}/leases"
"""On each lease: the name that those of one set share."""
SHARDS: Final = f"{names.GROUP}/shards"
"""Annotation: into how many shards the holder divides the pools."""
ASKED_BY: Final = f"{names.GROUP}/asked-by"
"""Annotation: identity of an operator that would like to have the lease."""
_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def own_namespace() -> str:
    """Return the namespace of the pod that this process runs in, "" outside of a cluster."""
    return _NAMESPACE.read_text().strip() if _NAMESPACE.exists() else ""


class Leases:
    """The leases `<name>-<shard>` of a namespace, with connections of their own.

    A renewal must not wait behind what passes write.
    """

    def __init__(self, namespace: str, name: str, timeout: float) -> None:
        self._namespace = namespace
        self._name = name
        self._timeout = timeout
        self._api = client.ApiClient()

    async def all(self) -> list[Record]:
        """Return every lease of the set. Raises NoAnswer."""
        with one_line(f"leases in namespace {self._namespace}"):
            found = await ask(
                self._api,
                "GET",
                path(_LEASES, self._namespace),
                query={"labelSelector": f"{LABEL}={self._name}"},
                seconds=self._timeout,
            )
        return [record for item in found["items"] for record in self._record(item)]

    async def write(self, record: Record) -> Record | None:
        """Write the lease; None if the version that the record is based on is not the newest.

        Raises NoAnswer; then it may have been written or not.
        """
        name = f"{self._name}-{record.shard}"
        verb, named = ("PUT", name) if record.version else ("POST", "")
        place = path(_LEASES, self._namespace, named)
        body = self._body(name, record)
        with one_line(f"lease {self._namespace}/{name}"):
            try:
                status, found = await send(self._api, verb, place, body, seconds=self._timeout)
            except client.ApiException as error:
                if error.status in (404, 409):
                    return None
                raise
        if verb == "PUT" and status == 201:  # it makes a lease that somebody has deleted
            return None
        return next(self._record(found), None)

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()

    def _record(self, item: dict[str, Any]) -> Iterator[Record]:
        metadata, spec = item["metadata"], item.get("spec") or {}
        annotations = metadata.get("annotations") or {}
        prefix, _, shard = metadata["name"].rpartition("-")
        if prefix == self._name and shard.isdecimal():
            yield Record(
                shard=int(shard),
                version=metadata["resourceVersion"],
                holder=spec.get("holderIdentity") or "",
                seconds=float(spec.get("leaseDurationSeconds") or 0),
                renewed=spec.get("renewTime") or "",
                acquired=spec.get("acquireTime") or "",
                transitions=spec.get("leaseTransitions") or 0,
                shards=_number(annotations.get(SHARDS, "")),
                asked_by=annotations.get(ASKED_BY, ""),
            )

    def _body(self, name: str, record: Record) -> dict[str, Any]:
        annotations = {SHARDS: str(record.shards)}
        if record.asked_by:
            annotations[ASKED_BY] = record.asked_by
        metadata = {"name": name, "labels": {LABEL: self._name}, "annotations": annotations}
        if record.version:
            metadata["resourceVersion"] = record.version
        spec = {
            "holderIdentity": record.holder,
            "leaseDurationSeconds": max(1, int(record.seconds)),
            "renewTime": record.renewed,
            "acquireTime": record.acquired or record.renewed,
            "leaseTransitions": record.transitions,
        }
        kind = {"apiVersion": "/".join(_LEASES[:2]), "kind": "Lease"}
        return {**kind, "metadata": metadata, "spec": spec}


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
