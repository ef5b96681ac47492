"""A way to a Service's port through the API server: `kubectl port-forward`, as long as it is needed."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Final, Self

from lorafleet_operator.kubectl.api import Failed

if TYPE_CHECKING:
    from lorafleet_operator.kubectl.api import Child, Kubectl

_LISTENS: Final = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+) ")
_PAUSE_SECONDS: Final = 0.5


class Tunnel:
    """Leads from a port of this machine's loopback to port `port` of a Service.

    kubectl ends with the pod behind it and is started again, at the same port of this machine, to the
    pod that is there then.
    """

    def __init__(self, kubectl: Kubectl, namespace: str, service: str, port: str) -> None:
        self._kubectl = kubectl
        self._place = (namespace, service, port)
        self._local = ""
        self._turn = threading.Lock()
        self._closing = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="tunnel", daemon=True)
        self._child: Child | None = None

    @property
    def address(self) -> str:
        """Where it begins, host:port."""
        return f"127.0.0.1:{self._local}"

    def __enter__(self) -> Self:
        """Raises Failed with what kubectl says when there is no way."""
        self._open()
        self._keeper.start()
        return self

    def __exit__(self, *error: object) -> None:
        with self._turn:
            self._closing.set()
            if self._child is not None:
                self._child.kill()
        self._keeper.join()

    def _open(self) -> Child | None:
        """Return a kubectl that listens; None once it is closed. Raises Failed."""
        namespace, service, port = self._place
        command = ["port-forward", "--address=127.0.0.1", "--pod-running-timeout=10s"]
        command += [f"--namespace={namespace}", f"service/{service}", f"{self._local}:{port}"]
        with self._turn:
            if self._closing.is_set():
                return None
            child = self._child = self._kubectl.started(command)
        try:
            for line in child.lines():
                found = _LISTENS.match(line)
                if found is not None:
                    self._local = found[1]
                    return child
            raise child.failed()
        except BaseException:
            child.end()
            raise

    def _keep(self) -> None:
        child = self._child
        while True:
            if child is not None:
                for _ in child.lines():
                    pass  # one for each connection
                child.end()
            if self._closing.wait(_PAUSE_SECONDS):
                return
            try:
                child = self._open()
            except Failed:
                child = None
