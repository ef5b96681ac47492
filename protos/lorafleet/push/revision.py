"""What a push made: which engines serve it, and how far they are behind."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

import grpc

from lorafleet.errors import LorafleetError, from_reason
from lorafleet.pinned_names import whole
from lorafleet.push.connection import Connection, about, answers
from lorafleet.push.failures import NotServed, Overtaken, from_call
from lorafleet.v1alpha1 import push_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lorafleet.push.connection import Operator

Engines = Literal["all"] | int
_TRY_AGAIN: Final = 0.2


@dataclass(frozen=True)
class Revision:
    """One pushed revision of the adapter `namespace/name`."""

    namespace: str
    name: str
    revision: str
    """"sha256:..." of what was pushed."""
    step: int
    generation: int
    """Of the LoRAAdapter that names it."""
    sent_bytes: int
    """Of tensors; what the operator had already is not in it."""
    unchanged: bool
    """Whether the adapter named the same content before."""
    served_name: str
    """The model name that engines answer to; it moves on with the next revision."""
    _operator: Operator = field(repr=False)

    def wait(
        self,
        engines: Engines = "all",
        timeout: float = 300.0,
        progress: Callable[[int, pb.PushStatus], None] = lambda _serving, _status: None,
    ) -> Revision:
        """Return once the engines serve the revision.

        `engines`: "all" that the adapter wants, or so many. `progress`: told how many engines serve it,
        and what the operator says. Raises NotServed after `timeout` seconds, Overtaken when a newer
        revision took its place, and what the fleet refuses it for.
        """
        deadline, last = time.monotonic() + timeout, pb.PushStatus()
        while True:
            try:
                for last in self._statuses(deadline):
                    progress(self._serving(last), last)
                    if self._served(last, engines):
                        return self
            except grpc.RpcError as error:
                found, again = from_call(error, self._operator.address)
                if not again and getattr(error, "code", lambda: None)() is not _DEADLINE:
                    raise found from None
            if time.monotonic() + _TRY_AGAIN > deadline:
                raise self._late(last, engines, timeout)
            time.sleep(_TRY_AGAIN)

    def staleness(self) -> dict[str, int | None]:
        """Return how many steps each engine that serves the adapter is behind this one, by pod.

        None for an engine that serves content which was not pushed or whose step is not known.
        """
        status = self.status()
        return {e.pod: _behind(self, e, status) for e in status.engines}

    def status(self) -> pb.PushStatus:
        """Return what the operator knows now of the adapter's revisions."""
        connection = Connection(self._operator)
        try:
            return connection.call(lambda stub, metadata: self._first(stub, metadata))
        finally:
            connection.close()

    def pinned(self, engine: str = "") -> str:
        """Return the model name that means this revision alone, whatever a newer push does to it.

        Engines answer to it as long as they have the revision loaded, and then with 404. `engine`: a
        pod, for where engines of two dtypes know the revision by two digests. Raises NotServed.
        """
        status = self.status()
        serving = [
            each
            for each in status.engines
            if each.revision == self.revision and engine in ("", each.pod)
        ]
        if not serving:
            raise NotServed(f"{engine or 'no engine'} serves {self.revision} of {self.served_name}")
        without = [each.pod for each in serving if not each.digest]
        if without:
            raise NotServed(f"{without[0]} has no plugin: it answers to {self.served_name} alone")
        found = sorted({each.digest for each in serving})
        if len(found) > 1:
            raise NotServed(
                f"engines of several dtypes serve {self.revision} as {' and '.join(found)}: name one"
            )
        return whole(self.served_name, found[0])

    def _first(self, stub: Any, metadata: Any) -> pb.PushStatus:
        call = stub.WatchPush(
            self._request, metadata=about(metadata, self.namespace, self.name), timeout=30
        )
        try:
            found: pb.PushStatus = next(call)
            return found
        finally:
            call.cancel()

    def _statuses(self, deadline: float) -> Iterator[pb.PushStatus]:
        def ask(stub: Any, metadata: Any, left: float) -> Any:
            given = about(metadata, self.namespace, self.name)
            return stub.WatchPush(self._request, metadata=given, timeout=left)

        return answers(self._operator, ask, deadline)

    def _served(self, status: pb.PushStatus, engines: Engines) -> bool:
        if status.generation > self.generation and status.revision != self.revision:
            raise Overtaken(
                f"{self.revision} of {self.served_name} was overtaken by "
                f"{status.revision} of step {status.step}"
            )
        if status.observed_generation < self.generation:
            return False
        if engines != "all":
            if self._serving(status) >= engines:
                return True
        elif status.ready and status.revision == self.revision:
            return True
        refused = from_reason(status.reason, status.message)
        if not status.ready and refused.terminal and type(refused) is not LorafleetError:
            raise refused
        return False

    def _serving(self, status: pb.PushStatus) -> int:
        return sum(each.revision == self.revision for each in status.engines)

    def _late(self, last: pb.PushStatus, engines: Engines, timeout: float) -> NotServed:
        serving = self._serving(last)
        why = f": {last.reason}: {last.message}" if last.reason else ""
        return NotServed(
            f"{serving} engines serve {self.revision} of {self.served_name} after {timeout:g} s, "
            f"{engines} were waited for{why}"
        )

    @property
    def _request(self) -> pb.WatchPushRequest:
        return pb.WatchPushRequest(namespace=self.namespace, name=self.name)


_DEADLINE: Final = grpc.StatusCode.DEADLINE_EXCEEDED


def _behind(of: Revision, engine: pb.PushedEngine, status: pb.PushStatus) -> int | None:
    if engine.revision == of.revision:
        return 0
    step = status.step if engine.revision == status.revision else engine.step
    if not step and not engine.HasField("step"):
        return None
    return max(of.step - step, 0)
