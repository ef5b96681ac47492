"""What bounds a transfer, and how its gRPC servers are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lorafleet.certificates import CertificateFiles

SERVICE = "lorafleet.v1alpha1.SidecarService"

HEALTH = "/grpc.health.v1.Health/Check"

MESSAGE_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", 17 << 20),
    ("grpc.max_send_message_length", 17 << 20),
    ("grpc.http2.max_ping_strikes", 0),  # pings pile up for a process that was busy
)
"""The largest chunk is 16 MiB, and neighbours ask now and then whether a sidecar that verifies is still alive."""


SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    *MESSAGE_OPTIONS,
    ("grpc.so_reuseport", 0),
    # One caller may be hostile: what it begins and breaks off must cost the others nothing.
    ("grpc.max_concurrent_streams", 512),
    ("grpc.max_allowed_incoming_connections", 1024),
    ("grpc.server_handshake_timeout_ms", 5000),
    ("grpc.max_connection_idle_ms", 300_000),
)
"""Pass as `options` to `grpc.aio.server`."""


@dataclass(frozen=True)
class TransferSettings:
    """What bounds a transfer."""

    stall_seconds: float = 60.0
    """Seconds without a byte on any stream of a transfer after which it is ended. Default 60."""

    resume_seconds: float = 900.0
    """Seconds that a broken transfer keeps its reservation. Default 15 minutes: an operator that
    restarts or backs off comes back well within that."""

    receivers: int = 0
    """Receiver processes. Default 0: chunks come on the StageAdapter stream alone."""

    receiver_host: str = "127.0.0.1"
    """Address that the receivers listen on."""

    receiver_base_port: int = 0
    """First port of the receivers, one each. Default 0: the system chooses."""

    certificates: CertificateFiles | None = None
    """For mutual TLS with neighbours and of the receivers. Default: plaintext."""

    operator_name: str = ""
    """Name that the operator's certificate carries: with TLS, receivers serve nobody else."""

    pod_uid: str = ""
    """UID of this pod: a neighbour's transfer that is for another is refused. Default: any is."""

    peer_name: str = ""
    """Name that the certificates of the pool's sidecars carry: with TLS and without this name
    nothing is passed on to neighbours."""

    forward_seconds: float = 30.0
    """Seconds that one chunk may wait for a neighbour that lives before the chain goes on without
    it (one that is dead or frozen is known at once, `lorafleet.pulse`). Default 30: below
    `stall_seconds`, so that it costs the others no transfer."""

    dial_seconds: float = 5.0
    """Seconds for a neighbour to answer a manifest; each one behind it adds as many. Default 5."""

    commit_seconds: float = 300.0
    """Seconds for a neighbour and those behind it to verify and commit. Default 300: less than the
    operator's own limit, so that it hears of it."""
