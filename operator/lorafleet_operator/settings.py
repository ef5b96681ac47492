"""Everything that can be configured about the operator. The only reader of `os.environ`.

Each field is read from `LORAFLEET_<FIELD>` (upper case); an empty value counts as not given.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lorafleet_operator.crashpoint import STEPS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PREFIX: Final = "LORAFLEET_"


class InvalidSetting(ValueError):
    """Raised for a malformed setting; the text names the variable."""


@dataclass(frozen=True, kw_only=True)
class OperatorSettings:
    """The settings of one operator, checked."""

    namespaces: tuple[str, ...] = ()
    """Namespaces to serve, separated by commas. Default none: the whole cluster."""

    pod_selector: str = ""
    """Label selector that every engine pod matches, evaluated by the API server. Default empty:
    all pods are watched, because EnginePools may select by any label; set it in large clusters."""

    tls_dir: Path | None = None
    """Directory with tls.crt, tls.key and ca.crt for mutual TLS with the sidecars. Default none:
    plaintext, which sidecars accept on loopback only."""

    tls_server_name: str = "{namespace}.engines.lorafleet"
    """Name that a sidecar's certificate has to carry; {pool}, {namespace} and {pod} are those of the
    pod that is dialled, {address} its address. Default a name for each namespace: pods of another
    cannot pass for engines of this one."""

    volume_root: Path | None = None
    """Directory with the mounted claims, each at <namespace>/<claimName>. Default none: volume
    sources are refused, since a path could otherwise name any file of the operator."""

    push_listen: str = ""
    """host:port of the service that trainers push to. Default none: no pushes. Needs push_dir, and
    push_tls_dir unless it is on loopback: tokens are not taken in plain."""

    push_dir: Path | None = None
    """Directory for pushed revisions, written by the operator alone; what is lost with it are
    revisions that no engine has. Default none."""

    push_tls_dir: Path | None = None
    """Directory with tls.crt and tls.key that trainers see, and ca.crt. Default none."""

    push_audience: str = "lorafleet"
    """Audience that trainers' tokens have to be for."""

    push_bytes: int = 64 << 30
    """Most bytes that are kept of pushes, with 16 KiB more for each file. Default 64 GiB."""

    push_namespace_bytes: int = 16 << 30
    """Most of them of one namespace. Default 16 GiB."""

    push_revisions: int = 3
    """Revisions of an adapter that are kept for the next push to build on. Default 3."""

    allow_private_addresses: bool = False
    """Whether sources may be at loopback and link-local addresses. Default false: a tenant's URL
    must not reach what only the operator can; for tests and laptops."""

    resync_seconds: float = 60.0
    """Seconds between passes over an adapter or pool for which nothing happens. Default 60: what
    no event told is put right within a minute (a person's unload, a lost event). Adapters that
    are served as they are wanted get 50 such passes a second together: more than 3000 wait longer."""

    chunk_bytes: int = 2 << 20
    """Most bytes of a chunk of a transfer, and what a source is asked for at once. Default 2 MiB:
    larger ones are no faster and more memory. Adapters below 256 MiB are cut finer, for chains."""

    window_chunks: int = 16
    """Chunks of that size of one transfer that may be in memory. Default 16 (32 MiB): enough for
    the latency of an object store, and far below the promised 256 MiB per adapter."""

    transfers: int = 4
    """Adapters that stream at once; each reads its source once for all its engines. Default 4:
    the bound on the operator's memory, with chunk_bytes and window_chunks. Of one tenant at most three
    quarters of them: slow sources of one leave room for others."""

    least_source_rate: int = 1 << 20
    """Bytes a second that a source has to give while other adapters wait to stream, over 30 s. Default
    1 MiB: a slower one leaves its place, and its engines keep what they have until its next turn. 0: any."""

    sources: int = 32
    """Adapters whose source is open at once, for a look or a transfer. Default 32: the bound on
    connections and open files when thousands of adapters come together. Of one namespace at most
    three quarters of them."""

    stall_seconds: float = 60.0
    """Seconds without progress after which an engine's transfer is given up. Default 60; the
    sidecar's own limit."""

    load_timeout_seconds: float = 330.0
    """Deadline of one LoadAdapter. Default 330: the sidecar's 300, and time to answer."""

    deletion_timeout_seconds: float = 120.0
    """Seconds after which a deletion no longer waits for engines that do not answer (event
    ForcedCleanup; they unload when they come back). Default 120: longer than a restart."""

    engine_grace_seconds: float = 300.0
    """Seconds without contact after which an engine no longer counts as a place for adapters.
    Default 300: a restart of vLLM takes minutes and should not move adapters about."""

    heartbeat_seconds: float = 15.0
    """Seconds of silence after which a sidecar is asked for its inventory. Default 15: a dead
    node is noticed without waiting for TCP."""

    backoff_seconds: float = 1.0
    """Delay before the first retry after a failure that may pass; doubles, with jitter."""

    backoff_limit_seconds: float = 300.0
    """Longest delay between retries. Default 300: no storm on a source that refuses."""

    listen: str = "0.0.0.0:9465"
    """host:port of /healthz and /metrics over plain HTTP. Default every address, for the kubelet
    and Prometheus; nothing there is secret. Empty: no server."""

    metrics_adapters: int = 2000
    """Adapters that have series of their own at /metrics, those that are not Ready first. Default
    2000: each costs Prometheus some thirty series; the sums count all."""

    liveness_seconds: float = 300.0
    """Age of the last proof of life (an event, a list) at which /healthz fails."""

    shards: int = 1
    """Shards into which the pools are divided; each has a lease, and an operator acts for the pools
    of those that it holds. Default 1: one operator acts, others stand by. With several, replicas
    share the pools. The same for all replicas; while it is being changed, those of the new number
    wait for the last one of the old."""

    lease_namespace: str = ""
    """Namespace of the leases. Default: the pod's own; outside of a cluster none, and the operator
    acts without leases, as if it were alone."""

    lease_name: str = "lorafleet-operator"
    """What the leases are called, followed by the shard's number. One name for each set of
    replicas that share their work."""

    lease_seconds: int = 15
    """Seconds for which a lease holds without renewal. Default 15: so long nobody acts for the pools
    of an operator that was killed; a slow API server must not cost one its leases."""

    identity: str = ""
    """What this operator is called in leases, while it runs by it alone. Default: the host's name
    and a random number. A pod's name is better: its restarted container need not wait."""

    crash_at: str = ""
    """Step at which to die, for tests of restarts (crashpoint.STEPS). Default none."""

    log_level: str = "INFO"
    """Level of the log: DEBUG, INFO, WARNING or ERROR."""

    def backoff(self, failures: int, jitter: float) -> float:
        """Return the seconds before the next try; `jitter` 0..1 takes up to half of them away."""
        growing = self.backoff_seconds * 2.0 ** min(failures - 1, 30)
        return min(growing, self.backoff_limit_seconds) * (1.0 - jitter / 2)

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> OperatorSettings:
        """Return the settings of the environment. Raises InvalidSetting naming the variable."""
        source = os.environ if environ is None else environ
        values: dict[str, object] = {}
        for each in fields(cls):
            name = PREFIX + each.name.upper()
            text = source.get(name, "")
            if text:
                try:
                    values[each.name] = _PARSERS[each.name](text)
                except (ValueError, LookupError) as error:
                    raise InvalidSetting(f"{name}={text!r}: {error}") from None
            elif each.name == "listen" and name in source:
                values[each.name] = ""
        return cls(**values)  # type: ignore[arg-type]


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _bool(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0"):
        raise ValueError("expected true or false")
    return text.lower() in ("true", "1")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 86_400:
        raise ValueError("expected seconds above 0, at most a day")
    return value


def _within(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text) if text.strip().isdecimal() else low - 1
        if not low <= value <= high:
            raise ValueError(f"expected a whole number from {low} to {high}")
        return value

    return parse


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError("expected host:port")
    return text


def _step(text: str) -> str:
    if text not in STEPS:
        raise ValueError(f"expected one of {', '.join(STEPS)}")
    return text


def _server_name(text: str) -> str:
    text.format(pool="", namespace="", pod="", address="")  # KeyError, IndexError, ValueError
    return text


def _lease_name(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,58}[a-z0-9])?", text):
        raise ValueError("expected at most 60 lower-case letters, digits, dashes and dots")
    return text


def _level(text: str) -> str:
    if text.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise ValueError("expected DEBUG, INFO, WARNING or ERROR")
    return text.upper()


_PARSERS: Final[dict[str, Callable[[str], object]]] = {
    "namespaces": _names,
    "pod_selector": str,
    "tls_dir": Path,
    "tls_server_name": _server_name,
    "volume_root": Path,
    "push_listen": _address,
    "push_dir": Path,
    "push_tls_dir": Path,
    "push_audience": str,
    "push_bytes": _within(1 << 20, 1 << 50),
    "push_namespace_bytes": _within(1 << 20, 1 << 50),
    "push_revisions": _within(1, 100),
    "allow_private_addresses": _bool,
    "resync_seconds": _seconds,
    "chunk_bytes": _within(64 << 10, 16 << 20),
    "window_chunks": _within(2, 1024),
    "transfers": _within(1, 64),
    "least_source_rate": _within(0, 1 << 40),
    "sources": _within(1, 1024),
    "stall_seconds": _seconds,
    "load_timeout_seconds": _seconds,
    "deletion_timeout_seconds": _seconds,
    "engine_grace_seconds": _seconds,
    "heartbeat_seconds": _seconds,
    "backoff_seconds": _seconds,
    "backoff_limit_seconds": _seconds,
    "listen": _address,
    "metrics_adapters": _within(0, 1_000_000),
    "liveness_seconds": _seconds,
    "shards": _within(1, 64),
    "lease_namespace": str,
    "lease_name": _lease_name,
    "lease_seconds": _within(1, 3600),
    "identity": str,
    "crash_at": _step,
    "log_level": _level,
}
