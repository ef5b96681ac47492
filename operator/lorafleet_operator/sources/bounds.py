"""Every limit that the sources keep, in one place."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import TYPE_CHECKING

from lorafleet.errors import PathNotAllowed

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = "adapter_config.json"
MAX_HEADER_BYTES = 100_000_000
"""Cap of a safetensors header, bytes: the format's own."""
MAX_CONFIG_BYTES = 1 << 20
"""Cap of adapter_config.json, bytes: real ones have a few KiB."""
MAX_INDEX_BYTES = 16 << 20
"""Cap of a shard index, bytes: about 100,000 tensors."""

MAX_PICKLE_BYTES = 16 << 20
"""Cap of the pickle in adapter_model.bin, bytes: about 100,000 tensors."""


@dataclass(frozen=True)
class SourceSettings:
    """Limits and places that the operator's administrator sets; tenants cannot widen them."""

    volume_root: Path | None = None
    """Folder with one mounted claim at `<namespace>/<claimName>`; None: no volume sources."""
    push_root: Path | None = None
    """Folder with what trainers pushed; None: no pushes."""
    allow_private_addresses: bool = False
    """Whether HTTP and S3 may reach loopback and link-local addresses. For tests and laptops."""
    denied_networks: tuple[str, ...] = ()
    """Further networks (CIDR) that no source may reach, such as the cluster's API server."""
    connect_timeout_s: float = 10.0
    """Seconds to reach a server, name lookup included."""
    stall_timeout_s: float = 30.0
    """Seconds without a byte until a read counts as broken."""
    read_timeout_s: float = 300.0
    """Seconds that one ranged read may take in all, retries included."""
    scan_timeout_s: float = 3600.0
    """Seconds for reading a whole file, for servers that tell neither size nor version."""
    attempts: int = 4
    """Tries of one request; a broken one goes on where it broke."""
    backoff_s: float = 0.5
    """Wait before the second try, seconds; doubles each time, at most 8."""
    max_wait_s: float = 30.0
    """Longest wait that a server may ask for (Retry-After), seconds; above it the pass ends."""
    max_redirects: int = 5
    """Redirects followed for one request."""
    max_adapter_bytes: int = 64 << 30
    """Largest data section, bytes; above it an adapter is refused before any allocation."""
    max_tensors: int = 1_000_000
    """Most tensors of one adapter."""
    max_shards: int = 256
    """Most files that a shard index may name."""
    volume_threads: int = 4
    """Threads that read from volumes, for the whole operator."""

    def max_file_bytes(self, name: str) -> int:
        """Return the size above which a file of that name is refused, bytes."""
        if name == CONFIG:
            return MAX_CONFIG_BYTES
        if name.endswith(".json"):
            return MAX_INDEX_BYTES
        return self.max_adapter_bytes + MAX_HEADER_BYTES + 8


_IPV4_AT_THE_END = tuple(
    map(ip_network, ("64:ff9b::/96", "64:ff9b:1::/48", "::ffff:0:0:0/96", "::/96"))
)
"""NAT64 by the well-known and the local prefix, IPv4-translated, and IPv4-compatible of old."""
_THIS_NETWORK = ip_network("0.0.0.0/8")
_METADATA = frozenset(
    map(ip_address, ("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254"))
)
"""Addresses at which clouds hand out credentials, beside the link-local ones."""

_CLAIM = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_LINE_ENDS = ("Zl", "Zp")


def forbidden_kind(address: str, settings: SourceSettings) -> str | None:
    """Return what makes an IP address forbidden ("loopback", ..), None if it is allowed.

    Decides by the address that is really embedded: IPv4 in mapped, 6to4, Teredo and NAT64 forms.
    """
    ip = ip_address(address.partition("%")[0])
    for inner in (ip, *_embedded(ip)):
        for network in settings.denied_networks:
            if inner in ip_network(network):
                return f"denied ({network})"
        if settings.allow_private_addresses:
            continue
        if inner.is_loopback or inner in _THIS_NETWORK or inner.is_unspecified:
            return "loopback"
        if inner.is_link_local:
            return "link-local"
        if inner in _METADATA:
            return "metadata"
        if inner.is_multicast:
            return "multicast"
    return None


def _embedded(ip: IPv4Address | IPv6Address) -> list[IPv4Address]:
    if isinstance(ip, IPv4Address):
        return []
    found = [ip.ipv4_mapped, ip.sixtofour, *(ip.teredo or ())]
    if any(ip in network for network in _IPV4_AT_THE_END):
        found.append(IPv4Address(int(ip) & 0xFFFFFFFF))
    return [inner for inner in found if inner is not None]


def checked_object_name(value: str, what: str) -> str:
    """Return a Kubernetes object name that is safe as one path component."""
    if not _CLAIM.fullmatch(value):
        raise PathNotAllowed(f"{what} {one_line(value)!r} is not a name")
    return value


def checked_relative_path(path: str, what: str) -> str:
    """Return `path` without a trailing slash; it must be relative and free of `..`."""
    kinds = {unicodedata.category(letter) for letter in path}
    if "\\" in path or any(kind[0] == "C" or kind in _LINE_ENDS for kind in kinds):
        raise PathNotAllowed(f"{what} {path!r} has a control character or backslash")
    parts = path.rstrip("/").split("/") if path.rstrip("/") else []
    if path.startswith("/") or any(part in ("", ".", "..") for part in parts):
        raise PathNotAllowed(f"{what} {path!r} must be relative, without '..', '.' or '//'")
    return "/".join(parts)


def one_line(text: str, limit: int = 200) -> str:
    """Return text from outside as it may stand in a message: printable and of bounded length."""
    cut = text if len(text) <= limit else text[: limit - 2] + ".."
    return "".join(c if c.isprintable() else "?" for c in cut)
