"""Letting a pool recycle the engines that grew, at a moment of the trainer's choice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lorafleet.push.connection import Connection
from lorafleet.push.failures import NotServed
from lorafleet.v1alpha1 import push_pb2 as pb

if TYPE_CHECKING:
    from lorafleet.push.connection import Operator


def safe_point(
    operator: Operator, namespace: str, name: str, timeout: float
) -> list[pb.GrownEngine]:
    """Return what became of the pool's engines once it is done. Raises NotServed."""
    request = pb.OpenSafePointRequest(
        namespace=namespace, name=name, timeout_seconds=max(int(timeout), 1)
    )
    connection = Connection(operator)

    def last(stub: Any, metadata: Any) -> pb.SafePointStatus:
        found = pb.SafePointStatus()
        for found in stub.OpenSafePoint(request, metadata=metadata, timeout=timeout + 10):
            if found.done:
                break
        return found

    try:
        found = connection.call(last)
    finally:
        connection.close()
    if not found.done:
        raise NotServed(f"the safe point of {namespace}/{name} is not over: {found.message}")
    return list(found.engines)
