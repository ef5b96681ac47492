"""What the API server knows of one loaded revision."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from typing import Any

from lorafleet import pinned_names

from lorafleet_vllm.keeping import SHARED
from lorafleet_vllm.refused import Refused
from lorafleet_vllm.settings import LOADERS

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


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
    closed: bool = False  # no new request reaches it: it is to be unloaded

    @property
    def name(self) -> str:
        """Its name for people."""
        return pinned_names.short(self.served_name, self.digest)


@dataclass(frozen=True)
class Reports:
    """What the workers said while nothing was in flight: true until an adapter is used or moved."""

    workers: list[dict[str, Any]]
    lookups: int
    at: float


def checked(served_name: str, digest: str, loader: str) -> str:
    """Return the digest's hex digits. Raises Refused for values that nobody should send."""
    match = _DIGEST.fullmatch(digest)
    if match is None:
        raise Refused(f"digest {digest!r} is not sha256:<64 hex digits>", 400)
    if loader not in LOADERS:
        raise Refused(f"loader {loader!r} is not one of {', '.join(LOADERS)}", 400)
    if len(served_name) > 253 or not served_name.isprintable():
        raise Refused("served_name must be 1 to 253 printable characters", 400)
    if pinned_names.parse(served_name) is not None:
        raise Refused(f"served_name {served_name!r} ends in @ and a digest", 400)
    return match[1]
