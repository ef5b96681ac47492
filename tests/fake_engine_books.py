"""What a fake engine is told beforehand, and what it keeps of each revision."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

MEMORY: dict[str, Any] = {
    "slot_bytes": 1 << 20,
    "weights_bytes": 5 << 20,
    "kv_cache_bytes": 3 << 20,
    "resident_host_bytes": 1 << 28,
    "seconds": {"fill": 0.25},
}
"""What each worker says of its memory."""


@dataclass
class Behaviour:
    """How the engine is set up and which misfortunes await it."""

    plugin: bool = True
    compat: str = "ok"
    lora_enabled: bool = True
    api_servers: int = 1
    api_key: str = ""
    runtime_updates: bool = True
    max_loras: int = 2
    max_cpu_loras: int = 3
    workers: int = 1
    loads_go_on: asyncio.Event = field(default_factory=asyncio.Event)
    """While a test clears it, loads wait."""
    proofs_go_on: asyncio.Event = field(default_factory=asyncio.Event)
    """The same for what was loaded and is to be proved."""
    first_request_seconds: float = 60.0
    refuse: dict[str, str] = field(default_factory=dict)  # digest, or "*" for all -> text
    wrong: dict[str, str] = field(default_factory=dict)  # digest -> what its slot is found to hold
    deadly: set[str] = field(default_factory=set)  # digests whose load kills the engine
    unlisted: set[str] = field(default_factory=set)  # names that /v1/models leaves out
    die_at: tuple[str, str] | None = None  # ("before" | "after", path): the engine dies there
    mute: set[str] = field(default_factory=set)  # digests that answer no probe
    failing: set[str] = field(default_factory=set)  # digests whose requests by clients fail
    profile: dict[str, Any] = field(default_factory=dict)  # fields beside the usual profile's


@dataclass
class Revision:
    """One loaded LoRA id."""

    lora_int_id: int
    served_name: str
    digest: str
    path: str
    in_flight: int = 0
    used_at: float = field(default_factory=time.monotonic)
    residency: str = ""
    verified: bool = False
    requests: int = 0
    errors: int = 0
    aborted: bool = False
    closed: bool = False

    def state(self) -> dict[str, Any]:
        """Return its entry in `/v1/state`."""
        return {
            "revision": f"{self.served_name}@{self.digest[7:19]}",
            "path": self.path,
            "in_flight": self.in_flight,
            "requests": self.requests,
            "errors": self.errors,
            "pinned": self.residency == "gpu",
            "residency": self.residency,
            "idle_seconds": int(time.monotonic() - self.used_at),
            "verified": self.verified,
            "closed": self.closed,
        }
