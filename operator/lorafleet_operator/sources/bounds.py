"""Every limit that the sources keep, in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MAX_HEADER_BYTES = 100_000_000
"""Cap of a safetensors header, bytes: the format's own."""
MAX_CONFIG_BYTES = 1 << 20
"""Cap of adapter_config.json, bytes: real ones have a few KiB."""
MAX_INDEX_BYTES = 16 << 20
"""Cap of a shard index, bytes: about 100,000 tensors."""


@dataclass(frozen=True)
class SourceSettings:
    """Limits and places that the operator's administrator sets; tenants cannot widen them."""

    volume_root: Path | None = None
    """Folder with one mounted claim at `<namespace>/<claimName>`; None: no volume sources."""
    allow_private_addresses: bool = False
    """Whether HTTP and S3 may reach loopback and link-local addresses. For tests and laptops."""
    connect_timeout_s: float = 10.0
    """Seconds to reach a server, name lookup included."""
    stall_timeout_s: float = 30.0
    """Seconds without a byte until a read counts as broken."""
    read_timeout_s: float = 300.0
    """Seconds that one ranged read may take in all, retries included."""
    attempts: int = 4
    """Tries of one request; a broken one goes on where it broke."""
    backoff_s: float = 0.5
    """Wait before the second try, seconds; doubles each time, at most 8."""
    max_redirects: int = 5
    """Redirects followed for one request."""
    max_adapter_bytes: int = 64 << 30
    """Largest data section, bytes; above it an adapter is refused before any allocation."""
    max_tensors: int = 1_000_000
    """Most tensors of one adapter."""
    volume_threads: int = 4
    """Threads that read from volumes, for the whole operator."""
