"""How a trainer reaches the operator: addresses, certificates, tokens, and trying again."""

from __future__ import annotations

import ipaddress
import os
import random
import re
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import grpc

from lorafleet.errors import AccessDenied, SourceNotFound
from lorafleet.push.failures import OperatorUnreachable, OtherProcess, from_call
from lorafleet.push.frames import stub_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lorafleet.errors import LorafleetError
    from lorafleet.v1alpha1 import push_pb2_grpc as pb_grpc

T = TypeVar("T")
Token = Callable[[], str] | Path | str
ADAPTER_KEY: Final = "lorafleet-adapter"
"""Metadata that tells an operator which adapter, `<namespace>/<name>`, a call is about before it has read
the call: so a refused one is told of in that namespace."""
_ADAPTER: Final = re.compile(r"[a-z0-9.-]{1,253}/[a-z0-9.-]{1,253}")
PROJECTED_TOKEN: Final = Path("/var/run/secrets/lorafleet/token")
"""Where docs/trainers.md has a trainer's pod mount its token."""
_TOKEN: Final = re.compile(r"[!-~]{1,16384}")
_LONGEST_PATH: Final = 255
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", 16 << 20),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Each connection is one of its own: a service's address may lead elsewhere the next time.
    ("grpc.use_local_subchannel_pool", 1),
)


@dataclass(frozen=True)
class Operator:
    """Where an operator is and how one proves who asks.

    `token`: the text's source, asked anew for each call: a function or a file. `ca`: a PEM file, or
    its bytes; None is the system's, and no TLS at all on loopback. `retry_seconds`: for how long what
    may pass is tried again. `server_name`: what the certificate must name, "" for the address's host.
    """

    address: str
    token: Token = field(repr=False)
    ca: Path | bytes | None
    retry_seconds: float
    server_name: str = ""

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return what a call carries. Raises AccessDenied when there is no token to read."""
        found = self._given().strip()
        # gRPC's own words about what it does not send have the token in them.
        if not _TOKEN.fullmatch(found):
            raise AccessDenied("what token= gives is no token: expected one word of ASCII")
        return (("authorization", f"Bearer {found}"),)

    def _given(self) -> str:
        if callable(self.token):
            return self.token()
        try:
            return Path(self.token).read_text(encoding="ascii", errors="replace")
        except (OSError, ValueError) as error:
            if str(self.token).startswith("eyJ") or len(str(self.token)) > _LONGEST_PATH:
                raise AccessDenied("token= is a function or a file's path, not a token") from None
            why = getattr(error, "strerror", None) or "no file has that name"
            raise AccessDenied(f"no token in {self.token}: {why}") from None

    def targets(self) -> list[str]:
        """Return all addresses of the service as ip:port, in the resolver's order."""
        host, _, port = self.address.rpartition(":")
        try:
            found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        except (OSError, ValueError) as error:
            raise OperatorUnreachable(
                f"{self.address} is no host:port that is known: {error}"
            ) from None
        return list(dict.fromkeys(_target(str(each[4][0]), int(each[4][1])) for each in found))

    def channel(self, target: str) -> grpc.Channel:
        """Return a new connection to one of them."""
        loopback = ipaddress.ip_address(target.rpartition(":")[0].strip("[]")).is_loopback
        # What is on this machine is behind no proxy, whatever the environment says.
        options = (*_OPTIONS, ("grpc.enable_http_proxy", int(not loopback)))
        if self.ca is None and loopback:
            return grpc.insecure_channel(target, options=options)
        host = self.server_name or self.address.rpartition(":")[0].strip("[]")
        # gRPC refuses a call whose authority is another host than the certificate's.
        authority = self.server_name or self.address
        names = (("grpc.ssl_target_name_override", host), ("grpc.default_authority", authority))
        roots = _read(self.ca) if isinstance(self.ca, Path) else self.ca
        return grpc.secure_channel(
            target, grpc.ssl_channel_credentials(roots), options=(*options, *names)
        )


def about(metadata: Any, namespace: str, name: str) -> Any:
    """Return a call's metadata with what it is about; what is no name is refused later."""
    key = f"{namespace}/{name}"
    return (*metadata, (ADAPTER_KEY, key)) if _ADAPTER.fullmatch(key) else metadata


class Connection:
    """One channel at a time, to the replica that answered last. Not for several threads at once,
    and for the process alone that it was first used in: gRPC does not outlive a fork."""

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self._channel: grpc.Channel | None = None
        self._process = 0

    def close(self) -> None:
        """Let go of the channel; the next call makes another."""
        if self._channel is not None and self._process == os.getpid():
            self._channel.close()
            self._channel = None

    def check_process(self) -> None:
        """Raise OtherProcess in one that was forked since the first use; call it before any lock."""
        self._process = self._process or os.getpid()
        if self._process != os.getpid():
            raise OtherProcess

    def call(self, ask: Callable[[pb_grpc.PushServiceStub, Any], T]) -> T:
        """Return what `ask` makes of the service and the call's metadata, on a replica that takes it.

        Raises what the operator says, or OperatorUnreachable, once `retry_seconds` are over or at
        once when another try cannot help.
        """
        self.check_process()
        deadline = time.monotonic() + self.operator.retry_seconds
        found: LorafleetError
        for pause in _pauses():
            try:
                for target in self._round():
                    try:
                        return self._ask(target, ask)
                    except grpc.RpcError as error:
                        self.close()
                        found, again = from_call(error, self.operator.address)
                        if not again:
                            raise found from None
            except OperatorUnreachable as unknown:
                found = unknown
            if time.monotonic() + pause > deadline:
                raise found
            time.sleep(pause)
        raise AssertionError("pauses end never")

    def _ask(self, target: str, ask: Callable[[pb_grpc.PushServiceStub, Any], T]) -> T:
        if self._channel is None:
            self._channel = self.operator.channel(target)
        return ask(stub_of(self._channel), self.operator.metadata())

    def _round(self) -> Iterator[str]:
        """Yield what to try: the connection there is, then every address of the service."""
        if self._channel is not None:
            yield ""
        yield from self.operator.targets()


def answers(
    operator: Operator, ask: Callable[[pb_grpc.PushServiceStub, Any, float], Any], deadline: float
) -> Iterator[Any]:
    """Yield what the operator says in answer to one call, until it ends.

    ask(service, metadata, seconds until the deadline): begins the call, again until one is answered.
    Raises as Connection.call before the first answer, grpc.RpcError after it.
    """
    connection = Connection(operator)
    calls: list[Any] = []

    def begin(stub: pb_grpc.PushServiceStub, metadata: Any) -> Any:
        calls.append(ask(stub, metadata, max(deadline - time.monotonic(), 0.01)))
        return next(calls[-1])

    try:
        yield connection.call(begin)
        yield from calls[-1]
    finally:
        for call in calls:
            with suppress(Exception):
                call.cancel()
        connection.close()


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise SourceNotFound(f"no certificates in {file}: {error.strerror}") from None


def _pauses() -> Iterator[float]:
    pause = _FIRST_PAUSE
    while True:
        yield pause * random.uniform(0.5, 1)  # noqa: S311 - to spread trainers, not to hide
        pause = min(2 * pause, _LONGEST_PAUSE)


def _target(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
