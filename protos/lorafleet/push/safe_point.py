"""Letting a pool recycle the engines that grew, at a moment of the trainer's choice."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import grpc

from lorafleet.push.connection import about, answers
from lorafleet.push.failures import NotServed, from_call
from lorafleet.v1alpha1 import push_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lorafleet.push.connection import Operator

_PAUSE_SECONDS: Final = 0.2
_GRACE_SECONDS: Final = 10.0
"""How long the operator's own word that the time is over is waited for."""


@dataclass(frozen=True)
class RecycledEngine:
    """One engine whose vLLM was started again."""

    pod: str
    reason: str
    """Why it was due."""
    loads: int
    """Of a worker, before."""
    growth_per_load: int | None
    """Bytes of host memory, before; None: there were too few loads to say."""
    host_bytes_before: int
    """Its workers' own memory."""
    host_bytes_after: int


@dataclass(frozen=True)
class SafePoint:
    """What became of a safe point."""

    recycled: tuple[RecycledEngine, ...]
    """By pod; none if no engine was due."""
    message: str
    """The operator's last word."""


class Opening:
    """One safe point of the pool of the adapter `namespace/name`, for `timeout` seconds at most."""

    def __init__(self, operator: Operator, namespace: str, name: str, timeout: float) -> None:
        self._operator = operator
        self._namespace = namespace
        self._name = name
        self._timeout = timeout
        self._call: Any = None
        self._closed = False

    def wait(self) -> SafePoint:
        """Return when no engine is due and the warm set is back; open it again when an operator ends.

        Raises NotServed after the timeout, AccessDenied, OperatorUnreachable.
        """
        deadline = time.monotonic() + self._timeout
        first: dict[str, pb.SafePointEngine] = {}
        last = pb.SafePointStatus()
        again = True
        while again:
            again = False
            try:
                for last in answers(self._operator, self._ask, deadline):
                    for engine in last.engines:
                        if engine.due:
                            first.setdefault(engine.pod, engine)
                    if last.done:
                        return outcome(first, last)
            except grpc.RpcError as error:
                found, again = from_call(error, self._operator.address)
                if not again and error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise found from None
            again = again and time.monotonic() + _PAUSE_SECONDS < deadline
            time.sleep(_PAUSE_SECONDS if again else 0)
        raise NotServed(
            f"the safe point of {self._namespace}/{self._name} was not over after "
            f"{self._timeout:g} s: {last.message or 'the operator told nothing of the pool'}"
        )

    def close(self) -> None:
        """Close it from another thread: no further engine is begun."""
        self._closed = True
        if self._call is not None:
            self._call.cancel()

    def _ask(self, stub: Any, metadata: Any, left: float) -> Any:
        if self._closed:
            raise NotServed(f"the safe point of {self._namespace}/{self._name} was closed")
        request = pb.OpenSafePointRequest(
            namespace=self._namespace, name=self._name, timeout_seconds=math.ceil(left)
        )
        given = about(metadata, self._namespace, self._name)
        self._call = stub.OpenSafePoint(request, metadata=given, timeout=left + _GRACE_SECONDS)
        if self._closed:  # between the look above and now: close() found nothing to cancel
            self._call.cancel()
        return self._call


def outcome(first: Mapping[str, pb.SafePointEngine], last: pb.SafePointStatus) -> SafePoint:
    """Return what became of the engines that were due, `first` as they were then, by pod. Pure."""
    now = {engine.pod: engine for engine in last.engines}
    return SafePoint(
        tuple(
            RecycledEngine(
                pod,
                before.due,
                before.loads,
                None if before.growth_per_load < 0 else before.growth_per_load,
                before.host_bytes,
                now[pod].host_bytes,
            )
            for pod, before in sorted(first.items())
            if pod in now and now[pod].instance not in ("", before.instance)
        ),
        last.message,
    )
