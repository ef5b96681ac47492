"""Names of Services: DNS labels that no two owners share, whatever these are called.

A name that will do is kept, so that people can tell it; others end in a hash of the whole name. The
beginnings tell the two kinds apart, and what a Service is for: none can be taken for another's.
"""

from __future__ import annotations

import hashlib
import re
from enum import StrEnum
from typing import Final

_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LONGEST: Final = 63 - len("canary-lora-")
_HASH: Final = 10


class Role(StrEnum):
    """What a Service of ours names; its value is how the Service's name begins."""

    ADAPTER = "lora"  # every engine that serves the adapter
    STABLE = "stable-lora"  # those that serve the revision before the one on trial
    CANARY = "canary-lora"  # those that serve the revision on trial
    POOL = "lorapool"  # every ready pod of a pool


def service_name(role: Role, owner: str) -> str:
    """Return the name of the Service that `owner`, a name in its namespace, has for `role`."""
    if len(owner) <= _LONGEST and _LABEL.fullmatch(owner):
        return f"{role}-{owner}"
    digest = hashlib.sha256(owner.encode()).hexdigest()[:_HASH]
    readable = re.sub(r"[^a-z0-9]+", "-", owner)[: _LONGEST - _HASH - 2].strip("-")
    return f"{role}x-{readable}-{digest}"


def slice_name(service: str, family: str, number: int) -> str:
    """Return the name of a Service's slice for addresses of one family, IPv4 or IPv6.

    The dot keeps the slices of one Service apart from those of another.
    """
    return f"{service}.{family.lower().removeprefix('ip')}-{number}"
