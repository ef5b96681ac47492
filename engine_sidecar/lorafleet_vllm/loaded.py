"""What the API server knows of one loaded revision."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from lorafleet_vllm.keeping import SHARED


@dataclass
class Loaded:
    """One revision that the engine knows, served or not."""

    served_name: str  # the name that it was loaded for
    digest: str
    loader: str
    request: Any  # vLLM's LoRARequest
    residency: str = SHARED
    since: float = field(default_factory=time.monotonic)
    verified: bool = False


@dataclass(frozen=True)
class Reports:
    """What the workers said while nothing was in flight: true until an adapter is used or moved."""

    workers: list[dict[str, Any]]
    lookups: int
    at: float
