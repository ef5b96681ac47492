"""`kubectl lora push NAME DIR`: a folder becomes an adapter's next revision, through the API server."""

from __future__ import annotations

import base64
import os
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lorafleet_operator.kubectl import api
from lorafleet_operator.kubectl.screen import unwinding
from lorafleet_operator.kubectl.text import size
from lorafleet_operator.kubectl.tunnel import Tunnel

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what it logs is told in our own line
from lorafleet.errors import LorafleetError
from lorafleet.peft_config import AdapterConfig
from lorafleet.push import Fleet, OperatorUnreachable
from lorafleet.push.content import from_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lorafleet.push import Revision
    from lorafleet.v1alpha1.push_pb2 import PushStatus

    from lorafleet_operator.kubectl.api import Kubectl
    from lorafleet_operator.kubectl.screen import Progress

_TOKEN_SECONDS: Final = 3600
_RETRY_SECONDS: Final = 20.0
"""For how long a push is tried again while a person waits."""
_UNREADABLE: Final = frozenset({"Forbidden", "NotFound"})


@dataclass(frozen=True)
class Way:
    """How the service is reached and as whom, as the arguments name it.

    `service`: namespace and name. `address`: host:port, "" for a way through the API server.
    """

    service: tuple[str, str]
    address: str = ""
    ca_file: str = ""
    token_file: str = ""
    service_account: str = ""
    audience: str = "lorafleet"


def checked(folder: str, name: str) -> Path:
    """Return the folder, once it holds what can be pushed. Raises Failed and LorafleetError."""
    if "://" in folder:
        text = f"{folder} is no folder; what lies in a store needs no push: name it in spec.source"
        raise api.Failed(text)
    if not Path(folder).is_dir():
        raise api.Failed(f"{folder} is no folder")
    content = from_folder(Path(folder))
    AdapterConfig.parse(content.config, adapter=name)
    return Path(folder)


def token_source(kubectl: Kubectl, namespace: str, way: Way) -> Callable[[], str] | Path:
    """Return what gives the token of a call. Raises Failed when nothing says who pushes."""
    if way.token_file:
        return Path(way.token_file)
    if not way.service_account:
        raise api.Failed(
            f"who pushes? give --service-account NAME, one of namespace {namespace} that may push, "
            "or --token-file FILE"
        )
    return Tokens(kubectl, namespace, way.service_account, way.audience)


class Tokens:
    """Tokens of a ServiceAccount, asked of the API server; one serves until half its time is over."""

    def __init__(self, kubectl: Kubectl, namespace: str, account: str, audience: str) -> None:
        of = f"/api/v1/namespaces/{api.named(namespace)}/serviceaccounts/{api.named(account)}"
        self._kubectl, self._place = kubectl, f"{of}/token"
        spec = {"audiences": [audience], "expirationSeconds": _TOKEN_SECONDS}
        self._body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": spec,
        }
        self._token, self._until = "", 0.0

    def __call__(self) -> str:
        """Return a token. Raises Failed."""
        if not self._token or time.monotonic() > self._until:
            status = self._kubectl.post(self._place, self._body).get("status") or {}
            self._token = str(status.get("token") or "")
            self._until = time.monotonic() + _TOKEN_SECONDS / 2
        return self._token


def authority(kubectl: Kubectl, service: tuple[str, str]) -> bytes:
    """Return what signed the service's certificate, PEM. Raises Failed.

    The ConfigMap `<service>-ca` has it, and so has the Secret `<service>-tls`, beside the key.
    """
    namespace, name = map(api.named, service)
    core = f"/api/v1/namespaces/{namespace}"
    refused = []
    for kind, place in (
        ("ConfigMap", f"{core}/configmaps/{name}-ca"),
        ("Secret", f"{core}/secrets/{name}-tls"),
    ):
        try:
            data = kubectl.get(place).get("data") or {}
        except api.Failed as error:
            if error.reason not in _UNREADABLE:
                raise
            refused.append(f"{kind} {place.rpartition('/')[2]}: {error.reason}")
            continue
        if found := data.get("ca.crt"):
            return base64.b64decode(found) if kind == "Secret" else str(found).encode()
        refused.append(f"{kind} {place.rpartition('/')[2]}: no ca.crt in it")
    raise api.Failed(
        f"what signed the certificate of service {namespace}/{name} cannot be read "
        f"({'; '.join(refused)}): give --ca-file FILE"
    )


class Pusher:
    """A connection to the push service; `with` closes it and the way to it."""

    def __init__(self, kubectl: Kubectl, namespace: str, way: Way) -> None:
        """Raises Failed when there is no way."""
        token = token_source(kubectl, namespace, way)
        if callable(token):
            token()  # who may not have one is told before a way is made
        ca: Path | bytes | None = Path(way.ca_file) if way.ca_file else None
        self._stack = ExitStack()
        address, self._reached, server_name = way.address, way.address, ""
        with self._stack:
            if not address:
                ca = ca or authority(kubectl, way.service)
                service_namespace, service = way.service
                self._stack.enter_context(unwinding())
                tunnel = Tunnel(kubectl, service_namespace, service, "push")
                address = self._stack.enter_context(tunnel).address
                self._reached = f"service {service_namespace}/{service}"
                server_name = f"{service}.{service_namespace}.svc"
            fleet = Fleet(
                address,
                namespace,
                token=token,
                ca=ca,
                retry_seconds=_RETRY_SECONDS,
                server_name=server_name,
            )
            self._fleet = self._stack.enter_context(fleet)
            self._stack = self._stack.pop_all()
        self._address = address

    def __enter__(self) -> Pusher:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def push(self, folder: Path, progress: Progress | None, **named: Any) -> Revision:
        """Push the folder as what `named` says (lorafleet.push.fleet.Named). Raises as Fleet.push."""
        try:
            made = self._fleet.push(folder, progress=sent(progress), **named)
        except OperatorUnreachable as error:  # a port of this machine says nothing to anybody
            text = str(error).replace(self._address, self._reached)
            raise OperatorUnreachable(text) from None
        finally:
            if progress is not None:
                progress.clear()
        assert made is not None, "only models of a distributed training have nothing to send"
        return made


def wait(made: Revision, seconds: float, progress: Progress | None) -> str:
    """Return "" once the engines serve it, else what keeps them. Raises Failed."""

    def told(serving: int, status: PushStatus) -> None:
        if progress is not None:
            said = f"{status.reason}: {status.message}" if status.message else status.reason
            progress.show(0, 0, said, f"{serving} engines serve it,")

    try:
        made.wait("all", seconds, told)
    except LorafleetError as error:
        return str(error)
    finally:
        if progress is not None:
            progress.clear()
    return ""


def sent(progress: Progress | None) -> Callable[[int, int], None]:
    """Return what shows how many bytes were sent; lines that stay come for each tenth."""
    last = -1

    def show(done: int, of: int) -> None:
        nonlocal last
        tenth = 10 * done // of if of else 10
        if progress is not None and of and (progress.live or tenth > last):
            last = tenth
            progress.show(done, of, "sent", f"{size(done)}/{size(of)}")

    return show


def document(made: Revision, ready: bool | None, message: str) -> Mapping[str, Any]:
    """Return what programs get."""
    return {
        "adapter": f"{made.namespace}/{made.name}",
        "servedName": made.served_name,
        "revision": made.revision,
        "step": made.step,
        "sentBytes": made.sent_bytes,
        "unchanged": made.unchanged,
        "ready": ready,
        "message": message,
    }
